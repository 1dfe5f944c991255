"""A line of progress in place of pytest's dots: number of tests, and their groups and systems.

On a terminal it is one line that is rewritten; elsewhere a line from time to time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from typing import Any

import pytest

FIRST = 2.0
"""Seconds before the first line: a shorter run needs none."""
IN_A_FILE = 20.0
"""Seconds between two lines in a file, where each line stays."""
WIDTH = 100
"""Columns of a line in a file."""
ON_A_TERMINAL = 0.2
"""Seconds between two states of the line that is rewritten."""


def topic(nodeid: str, about: Mapping[str, Any] | None) -> str:
    """The topic of a test: group and system, or group and part, or its file."""
    if about is None:
        *folders, file = nodeid.partition("::")[0].removesuffix(".py").split("/")
        return "/".join([*folders[-1:], file.removeprefix("test_")])
    what = about.get("system") or about.get("subject") or "mutants"
    return f"{about['guarantee'][:3]} {what}"


class Progress:
    """Counts tests that have ended; knows when the next line is due."""

    def __init__(
        self, interval: float, clock: Callable[[], float] = time.monotonic, first: float = FIRST
    ) -> None:
        self._clock, self._interval = clock, interval
        self._due = clock() + first
        self._ended: set[str] = set()
        self._failed: set[str] = set()
        self._topics: dict[str, str] = {}
        """What is checked, by worker of pytest-xdist, or for the only process."""
        self.total = 0

    def begin(self, worker: str, subject: str) -> None:
        """A test has begun, or its first report has arrived."""
        self._topics[worker] = subject

    def end(self, nodeid: str, *, failed: bool) -> None:
        """A phase of a test has ended; a test is counted once."""
        self._ended.add(nodeid)
        if failed:
            self._failed.add(nodeid)

    def due(self) -> bool:
        """Whether the next line is due, and there is something to show."""
        now = self._clock()
        if now < self._due or not self._topics:
            return False
        self._due = now + self._interval
        return True

    def line(self, width: int) -> str:
        """``812 of 1466 tests done, 1 failed: SMP resnet, MOD training``."""
        failed = f", {len(self._failed)} failed" if self._failed else ""
        topics = ", ".join(dict.fromkeys(self._topics.values()))
        text = f"{len(self._ended)} of {self.total} tests done{failed}: {topics}"
        return text if len(text) <= width else f"{text[: width - 3]}..."


class ProgressPlugin:
    """A pytest plugin that shows a :class:`Progress` in place of the dots."""

    def __init__(self, reporter: Any, about_of: Callable[[str], Mapping[str, Any] | None]) -> None:
        """``about_of`` returns what a test of this process decides, by its node id."""
        self._reporter, self._about_of = reporter, about_of
        self._progress = Progress(ON_A_TERMINAL if reporter.isatty else IN_A_FILE)
        self._shown = False
        self._has_workers = False
        self._is_running = False
        reporter.showfspath = False
        reporter._show_progress_info = False

    @pytest.hookimpl(wrapper=True)
    def pytest_report_teststatus(self) -> Generator[None, Any, Any]:
        """Count tests as all plugins do, without their letters; the summary needs their words."""
        category, letter, word = yield
        return (category, "", "") if self._is_running else (category, letter, word)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """All tests of this process are known."""
        self._progress.total = len(session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        """All tests of pytest-xdist are known; each worker has the same."""
        self._has_workers = True
        self._progress.total = len(ids)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Show the test that begins; its worker is known only with its report."""
        if not self._has_workers:
            self._progress.begin("", topic(nodeid, self._about_of(nodeid)))
        self._show()

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count the test; after the plugin, which has noted on the report what it decides."""
        gateway = getattr(getattr(report, "node", None), "gateway", None)
        properties: dict[str, Any] = dict(report.user_properties)
        about = properties.get("conformance subject")
        self._progress.begin(getattr(gateway, "id", ""), topic(report.nodeid, about))
        if report.when == "call" or not report.passed:
            self._progress.end(report.nodeid, failed=report.failed)
        self._show()

    def _show(self) -> None:
        if not self._progress.due():
            return
        reporter = self._reporter
        if reporter.isatty:
            self._shown = True
            reporter.rewrite(self._progress.line(reporter._tw.fullwidth - 1), erase=True)
        else:
            reporter.write_line(self._progress.line(WIDTH))
        reporter.flush()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """Take the line away from a terminal before pytest reports."""
        self._is_running = True
        try:
            return (yield)
        finally:
            self._is_running = False
            if self._shown:
                self._reporter.rewrite("", erase=True)
                self._reporter.write("\r")
