"""Reports of ddp tests that did not run on ranks."""

from __future__ import annotations

import pytest
from _pytest._code.code import ReprEntryNative as Block
from _pytest._code.code import ReprExceptionInfo, ReprFileLocation, ReprTraceback

from pytest_ddp.system.own import time


def skipped_without_ranks(item: pytest.Item, reason: str) -> list[pytest.TestReport]:
    """Setup skipped and teardown passed, as for a skip mark in pytest."""
    path, line, _ = item.location
    return [
        _report(item, "setup", "skipped", (path, (line or 0) + 1, f"Skipped: {reason}")),
        _report(item, "teardown", "passed", None),
    ]


def failed_without_ranks(item: pytest.Item, text: str) -> list[pytest.TestReport]:
    """An error in setup, since nothing of the test ran."""
    return [
        _report(item, "setup", "failed", _represent(item, text)),
        _report(item, "teardown", "passed", None),
    ]


def failed_call(item: pytest.Item, text: str) -> pytest.TestReport:
    """A failure of the call that is found in the pytest process, while each rank passed."""
    return _report(item, "call", "failed", _represent(item, text))


def _represent(item: pytest.Item, text: str) -> ReprExceptionInfo:
    path, line, _ = item.location
    crash = ReprFileLocation(path, (line or 0) + 1, text.splitlines()[0])
    traceback = ReprTraceback([Block([f"{text.rstrip()}\n"])], None, "native")
    return ReprExceptionInfo(traceback, crash)


def _report(item: pytest.Item, when: str, outcome: str, longrepr: object) -> pytest.TestReport:
    now = time.time()
    return pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords=dict.fromkeys(item.keywords, 1),
        outcome=outcome,  # type: ignore[arg-type]
        longrepr=longrepr,  # type: ignore[arg-type]
        when=when,  # type: ignore[arg-type]
        start=now,
        stop=now,
    )
