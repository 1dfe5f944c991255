"""What a rank keeps to itself until its test ends: phases that passed without a word.

Nearly all phases do, and to tell of each by itself, whole, was a third of what a warm test cost
the controller. They go on the rank's page meanwhile, where the controller finds those of a rank
that did not live to tell; a report that says anything else is sent at once.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pytest_ddp.wire import marker
from pytest_ddp.wire.marker import Page
from pytest_ddp.wire.protocol import Passed, Phase

_PLAIN = vars(pytest.TestReport("", ("", None, ""), {}, "passed", None, "call")).keys()
"""Attributes that each report has; others come from plugins."""


class Kept:
    """The writing side."""

    def __init__(self, page: Page, config: pytest.Config) -> None:
        self._page = page
        self._config = config
        self._readers: list[Any] = []
        self._wanted = True
        self._has_subtest = False
        """Whether a wordless report of a subtest has been told whole."""
        self._passed: list[Passed] = []
        self._lines: list[str] = []

    def begin(self, test: int) -> None:
        """The rank has begun a test: from here on it is the test's own doing."""
        # Asked anew, because each file may have a conftest of its own.
        readers = _readers(self._config)
        if readers != self._readers:
            self._readers, self._wanted = readers, all(map(_is_pytests, readers))
        self._passed = []
        self._has_subtest = False
        self._lines = [str(test)]
        self._write()

    def take(self, report: pytest.TestReport) -> bool:
        """Keep a report; False if it says something that has to be told by itself."""
        if not (self._wanted and _is_plain(report)):
            return False
        try:
            times = tuple(int(at * 1e9) for at in (report.start, report.stop, report.duration))
        except (TypeError, ValueError, OverflowError):
            return False  # a plugin has put something else there
        self._passed.append(Passed(Phase(report.when), *times))
        self._lines.append(" ".join(map(str, (report.when, *times))))
        self._write()
        return True

    def take_subtest(self, report: pytest.TestReport) -> bool:
        """Whether of this subtest's report no more need be told than its name and times.

        There are tests with thousands of them.
        """
        if not (self._wanted and is_wordless(report)):
            return False
        known, self._has_subtest = self._has_subtest, True
        return known

    def passed(self) -> tuple[Passed, ...]:
        """All that was taken in this test."""
        return tuple(self._passed)

    def _write(self) -> None:
        self._page.write(marker.KEPT, marker.framed(*self._lines))


@dataclass(frozen=True)
class Untold:
    """What a page has kept."""

    test: int = 0
    """The last test that the rank began; 0 if it has begun none."""
    passed: tuple[Passed, ...] = ()


def read(path: Path) -> Untold:
    """What the rank that writes this page would tell at the end of its test."""
    # A test can write into any file. What cannot be read was not told, and fails the test.
    with contextlib.suppress(ValueError, TypeError):
        test, *phases = marker.lines(path, marker.KEPT) or ("0",)
        return Untold(int(test or 0), tuple(_read(*line.split()) for line in phases))
    return Untold()


def _read(phase: str, start: str, stop: str, duration: str) -> Passed:
    return Passed(Phase(phase), int(start), int(stop), int(duration))


def is_subtest(report: pytest.TestReport) -> bool:
    """Whether a report is of a subtest: pytest 9's, or the plugin's for pytest 8."""
    return "context" in vars(report)


def is_wordless(report: pytest.TestReport) -> bool:
    """Whether a phase, or a subtest, has passed and nobody has added anything to its report."""
    return (
        report.outcome == "passed"
        and not (report.longrepr or report.sections or report.user_properties)
        and vars(report).keys() - {"context"} == _PLAIN
    )


def _is_plain(report: pytest.TestReport) -> bool:
    return type(report) is pytest.TestReport and is_wordless(report)


def _readers(config: Any) -> list[Any]:
    """Implementations of the hooks that have a part in how reports travel."""
    hook = config.hook
    parts = (hook.pytest_report_to_serializable, hook.pytest_report_from_serializable)
    return [reader for part in parts for reader in part.get_hookimpls()]


def _is_pytests(reader: Any) -> bool:
    return str(getattr(reader.function, "__module__", "")).startswith("_pytest.")
