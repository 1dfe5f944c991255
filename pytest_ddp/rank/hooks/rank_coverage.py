"""Coverage of a rank's code, measured as that of the pytest process is.

A rank has a ``Coverage`` of its own, configured as that of the pytest process. It measures from
before the user's code is imported until the rank's exit handlers have run. coverage.py's own means
would not do: its ``patch = subprocess`` and ``patch = fork`` measure the host and its imports, and
save only at the normal end of a process, which a killed rank does not reach.

coverage.py is not imported unless the pytest process is measured.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from pytest_ddp.protocol.host_messages import CoverageSettings
from pytest_ddp.rank.exits import crash_stacks
from pytest_ddp.system.stdlib import os, threading

if TYPE_CHECKING:
    from coverage import Coverage

_AS_DATA = ":data:"
"""Prefix by which coverage.py 7.10 and later recognise a serialized configuration."""
_EXPECTED = ("no-data-collected", "module-not-imported", "module-not-measured")
"""Warnings that coverage.py itself suppresses in all processes but the main one."""


def start(measured: CoverageSettings) -> Coverage:
    """Measure this process from now on, and save when it exits."""
    from coverage import Coverage  # noqa: PLC0415 - only if coverage is measured

    # A fork inherits all that were running, one inside the other.
    while (inherited := Coverage.current()) is not None:
        inherited.stop()
    coverage = Coverage(auto_data=True, config_file=_AS_DATA + measured.config)
    coverage.set_option("run:data_file", measured.data_file)
    coverage.set_option("run:parallel", True)
    coverage.set_option("run:disable_warnings", [*_EXPECTED, "already-imported"])
    coverage.start()
    if measured.process_start:
        os.environ["COVERAGE_PROCESS_START"] = measured.process_start
    return coverage


@contextlib.contextmanager
def during(measured: CoverageSettings | None) -> Iterator[None]:
    """Measure what a host imports of the user's code in the block."""
    coverage = None if measured is None else start(measured)
    yield
    if coverage is not None:
        coverage.stop()
        coverage.save()


class RankCoverage:
    """A pytest plugin of a rank that is measured."""

    def __init__(self, coverage: CoverageSettings) -> None:
        self._measured = coverage
        self._coverage = start(coverage)
        self._lock = threading.Lock()
        """Held while the data is written or switched, as each save may rename the file."""
        self._failed = False
        self.tell: Callable[[str], None] = lambda text: None
        """Called with a warning about data that could not be saved."""
        crash_stacks.before_exit.append(self.save)

    def save(self) -> None:
        """Save what was measured since the last save; on any thread."""
        with self._lock:
            try:
                self._coverage.save()
            except Exception as error:  # by sqlite, the file system or a patched function
                if not self._failed:
                    self._failed = True
                    self.tell(f"the coverage of a rank is not complete: {error!r}")

    # ------------------------------------------------------------------ pytest's hooks

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self._begin(item, "setup")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        self._begin(item, "run")
        if not (self._measured.by_plugin and _is_spared(item)):
            return (yield)
        with self._lock:
            self._coverage.stop()
        try:
            return (yield)
        finally:
            with self._lock:
                self._coverage.start()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        self._begin(item, "teardown")

    def pytest_runtest_logreport(self) -> None:
        """Save after each phase, as the rank may be killed in the next one."""
        self.save()

    def _begin(self, item: pytest.Item, phase: str) -> None:
        if self._measured.contexts:
            with self._lock:
                # The names of contexts are pytest-cov's.
                self._coverage.switch_context(f"{item.nodeid}|{phase}")


def _is_spared(item: pytest.Item) -> bool:
    """Whether pytest-cov's ``no_cover`` is set, as a mark or as a fixture."""
    fixtures = getattr(item, "fixturenames", ())
    return item.get_closest_marker("no_cover") is not None or "no_cover" in fixtures
