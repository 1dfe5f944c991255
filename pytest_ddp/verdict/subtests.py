"""Subtests of a rank: pytest reports each by itself; those that fail speak for their phase."""

from __future__ import annotations

import ast
import contextlib
import re
from typing import Any

import pytest
from _pytest._code.code import (
    ReprEntryNative,
    ReprExceptionInfo,
    ReprFileLocation,
    ReprTraceback,
)

from pytest_ddp.verdict.entries import bare_text, entries_of
from pytest_ddp.verdict.trouble import first_line

_SUMMARY = re.compile(r"contains \d+ failed subtests?")
"""What pytest says of a test all of whose failures were in subtests."""


def of_phase(report: pytest.TestReport) -> pytest.TestReport | None:
    """The report of a subtest as one of its phase, with its name; None unless it failed.

    A report of a kind of its own could not be merged, nor sent on by xdist.
    """
    if not report.failed:
        return None
    name = ReprEntryNative([f"subtest {_name(report)}\n"])
    return pytest.TestReport(
        nodeid=report.nodeid,
        location=report.location,
        keywords=report.keywords,
        outcome=report.outcome,
        longrepr=_represent([name, *_entries(report)], _crash(report)),
        when=report.when,
        sections=report.sections,
        duration=report.duration,
        start=report.start,
        stop=report.stop,
        user_properties=report.user_properties,
    )


def join(known: pytest.TestReport, later: pytest.TestReport) -> None:
    """Add a later failure of the phase to the one that is known, which stays in front."""
    known.sections += [section for section in later.sections if section not in known.sections]
    if later.failed and not _SUMMARY.fullmatch(bare_text(later.longrepr) or ""):
        entries = [*entries_of(known.longrepr), ReprEntryNative(["\n"]), *_entries(later)]
        known.longrepr = _represent(entries, _crash(known))


def _name(report: Any) -> str:
    """As pytest has it: ``[message] (parameter=value)``."""
    context = getattr(report, "context", None)
    message = getattr(context, "msg", None)
    parameters = ", ".join(f"{k}={_value(v)}" for k, v in getattr(context, "kwargs", {}).items())
    parts = (f"[{message}]" if message is not None else "", parameters and f"({parameters})")
    return " ".join(filter(None, parts)) or "(<subtest>)"


def _value(value: object) -> object:
    """Without the quotes that pytest adds when a subtest's report is sent on."""
    with contextlib.suppress(ValueError, SyntaxError):
        if isinstance(value, str) and isinstance(literal := ast.literal_eval(value), str):
            return literal
    return value


def _entries(report: pytest.TestReport) -> list[Any]:
    text = bare_text(report.longrepr)
    if text is not None:
        return [ReprEntryNative([f"{text}\n"])]
    return entries_of(report.longrepr)


def _crash(report: pytest.TestReport) -> ReprFileLocation:
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None:
        return ReprFileLocation(crash.path, crash.lineno, crash.message)
    path, line, _ = report.location
    return ReprFileLocation(path, (line or 0) + 1, first_line(bare_text(report.longrepr) or ""))


def _represent(entries: list[Any], crash: ReprFileLocation) -> ReprExceptionInfo:
    return ReprExceptionInfo(ReprTraceback(entries, None, "long"), crash)
