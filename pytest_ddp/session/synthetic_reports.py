"""Reports of ddp tests that did not run on ranks."""

from __future__ import annotations

import builtins
import re
import sys

import pytest
from _pytest._code.code import ReprEntryNative as Block
from _pytest._code.code import ReprExceptionInfo, ReprFileLocation, ReprTraceback

from pytest_ddp.system.stdlib import time
from pytest_ddp.verdict.diagnosis import Diagnosis, Kind
from pytest_ddp.verdict.rank_failure import message_of


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


# ------------------------------------------------------------------
# A failed phase of a ddp test as an exception, for plugins that need its type.

_EXCEPTION = re.compile(r"(?P<type>[^\W\d][\w.]*)(?:: (?P<text>.*))?", re.DOTALL)
_OWN_KINDS = re.compile(r"\W+")


def exception_of(report: pytest.TestReport, diagnosis: Diagnosis | None) -> BaseException:
    """The exception of the first original failure, or one with the name of the failure's kind.

    The rank's own object cannot leave its process. This one has the name of its class and its text,
    and is an instance of that class if this process has imported it. A crash is a ``Crash``, a
    deadlock a ``Deadlock``, and so on for :class:`Kind`, with the verdict as text.
    """
    if diagnosis is None:
        return _like(message_of(report.longrepr))
    if diagnosis.kind is Kind.FAILURE:
        return _like(diagnosis.roots[0][0].message)
    name = _OWN_KINDS.sub("", diagnosis.kind.value.title())
    return _made(name, Exception, diagnosis.what)


def _like(message: str) -> BaseException:
    if message.startswith("assert "):
        # pytest does not show the type of a rewritten assertion.
        return _made("AssertionError", AssertionError, message)
    match = _EXCEPTION.fullmatch(message)
    if match is None:
        return _made("Exception", Exception, message)
    module, _, name = match["type"].rpartition(".")
    base = getattr(sys.modules.get(module, builtins), name, None)
    if not (isinstance(base, type) and issubclass(base, BaseException)):
        base = Exception
    return _made(name, base, match["text"] or "")


def _made(name: str, base: type[BaseException], text: str) -> BaseException:
    """An instance of a subclass without the constructor, whose parameters are unknown."""
    members = {"__init__": lambda self: None, "__str__": lambda self: text}
    try:
        made: BaseException = type(name, (base,), members)()
    except TypeError:  # an ExceptionGroup, a class that may not be derived from
        made = type(name, (Exception,), members)()
    return made
