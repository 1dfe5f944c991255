"""A failed phase of a ddp test as an exception, for plugins that ask by which it failed."""

from __future__ import annotations

import builtins
import re
import sys

import pytest

from pytest_ddp.verdict.diagnosis import Diagnosis, Kind

_EXCEPTION = re.compile(r"(?P<type>[^\W\d][\w.]*)(?:: (?P<text>.*))?", re.DOTALL)
_OWN_KINDS = re.compile(r"\W+")


def raised(report: pytest.TestReport, diagnosis: Diagnosis | None) -> BaseException:
    """What the first rank raised that failed by itself, or else an exception named by the ending.

    The rank's own object cannot leave its process: this one has the name and the text of its
    class, and is an instance of that class where this process knows it too. A crash is a
    ``Crash``, a deadlock a ``Deadlock``, and so on for :class:`Kind`, with the verdict as text.
    """
    if diagnosis is None:
        return _like(_message(report))
    if diagnosis.kind is Kind.FAILURE:
        return _like(diagnosis.roots[0][0].message)
    name = _OWN_KINDS.sub("", diagnosis.kind.value.title())
    return _made(name, Exception, diagnosis.verdict.removeprefix(f"{diagnosis.kind}: "))


def _message(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return report.longreprtext if crash is None else str(crash.message)


def _like(message: str) -> BaseException:
    if message.startswith("assert "):
        # pytest leaves the type of a rewritten assertion out.
        return _made("AssertionError", AssertionError, message)
    match = _EXCEPTION.fullmatch(message)
    if match is None:
        return _made("Exception", Exception, message)
    module, _, name = match["type"].rpartition(".")
    known = getattr(sys.modules.get(module, builtins), name, None)
    if not (isinstance(known, type) and issubclass(known, BaseException)):
        known = Exception
    return _made(name, known, match["text"] or "")


def _made(name: str, base: type[BaseException], text: str) -> BaseException:
    """An instance of the class without its constructor, which may ask for anything."""
    members = {"__init__": lambda self: None, "__str__": lambda self: text}
    try:
        made: BaseException = type(name, (base,), members)()
    except TypeError:  # an ExceptionGroup, a class that may not be derived from
        made = type(name, (Exception,), members)()
    return made
