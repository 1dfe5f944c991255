"""Reports that a rank keeps until its test ends: phases that passed with nothing to report.

Nearly all phases do. Sending a complete report of each was a third of the controller's time for a
test on a rank that is kept. Until the end they are on the rank's page, where the controller finds
them if the rank dies; a report with any other content is sent at once.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pytest_ddp.protocol import status_page
from pytest_ddp.protocol.messages import Passed, Phase
from pytest_ddp.protocol.status_page import StatusPage

_PLAIN = vars(pytest.TestReport("", ("", None, ""), {}, "passed", None, "call")).keys()
"""Attributes that each report has; any others were added by plugins."""


class BufferedReports:
    """The writing side, in a rank."""

    def __init__(self, page: StatusPage, config: pytest.Config) -> None:
        self._page = page
        self._config = config
        self._readers: list[Any] = []
        self._keeps = True
        """False if a plugin takes part in how reports are sent, and may need each."""
        self._has_subtest = False
        """Whether this test has sent the complete report of a subtest with nothing to report."""
        self._passed: list[Passed] = []
        self._lines: list[str] = []

    def begin(self, test: int) -> None:
        """Start a test; called when the rank has begun it."""
        # For each test, as each file may have a conftest of its own.
        readers = _readers(self._config)
        if readers != self._readers:
            self._readers, self._keeps = readers, all(map(_is_pytests, readers))
        self._passed = []
        self._has_subtest = False
        self._lines = [str(test)]
        self._write()

    def take(self, report: pytest.TestReport) -> bool:
        """Keep a report; False if it has to be sent by itself."""
        if not (self._keeps and _is_plain(report)):
            return False
        try:
            times = tuple(int(at * 1e9) for at in (report.start, report.stop, report.duration))
        except (TypeError, ValueError, OverflowError):
            return False  # a plugin has set other values
        self._passed.append(Passed(Phase(report.when), *times))
        self._lines.append(" ".join(map(str, (report.when, *times))))
        self._write()
        return True

    def take_subtest(self, report: pytest.TestReport) -> bool:
        """Whether it is enough to send the name and the times of this subtest.

        Some tests have thousands of subtests.
        """
        if not (self._keeps and is_empty(report)):
            return False
        known, self._has_subtest = self._has_subtest, True
        return known

    def passed(self) -> tuple[Passed, ...]:
        """All reports that were kept in this test."""
        return tuple(self._passed)

    def _write(self) -> None:
        self._page.write(status_page.KEPT, status_page.framed(*self._lines))


@dataclass(frozen=True)
class RecoveredReports:
    """The reports kept on a page."""

    test: int = 0
    """The last test that the rank began; 0 if it has begun none."""
    passed: tuple[Passed, ...] = ()


def read(path: Path) -> RecoveredReports:
    """The reports that the rank with this page has not sent."""
    # A test can write into any file. A phase that cannot be read counts as not reported, and fails
    # the test.
    with contextlib.suppress(ValueError, TypeError):
        test, *phases = status_page.lines(path, status_page.KEPT) or ("0",)
        return RecoveredReports(int(test or 0), tuple(_read(*line.split()) for line in phases))
    return RecoveredReports()


def _read(phase: str, start: str, stop: str, duration: str) -> Passed:
    return Passed(Phase(phase), int(start), int(stop), int(duration))


def is_subtest(report: pytest.TestReport) -> bool:
    """Whether a report is of a subtest: pytest 9's, or the plugin's for pytest 8."""
    return "context" in vars(report)


def is_empty(report: pytest.TestReport) -> bool:
    """Whether a phase or subtest has passed, and its report has no further content."""
    return (
        report.outcome == "passed"
        and not (report.longrepr or report.sections or report.user_properties)
        and vars(report).keys() - {"context"} == _PLAIN
    )


def _is_plain(report: pytest.TestReport) -> bool:
    return type(report) is pytest.TestReport and is_empty(report)


def _readers(config: Any) -> list[Any]:
    """Implementations of the hooks that serialize and deserialize reports."""
    hook = config.hook
    parts = (hook.pytest_report_to_serializable, hook.pytest_report_from_serializable)
    return [reader for part in parts for reader in part.get_hookimpls()]


def _is_pytests(reader: Any) -> bool:
    return str(getattr(reader.function, "__module__", "")).startswith("_pytest.")
