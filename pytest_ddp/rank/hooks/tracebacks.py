"""Tracebacks as they would be without the plugin: its own frames are removed.

``__tracebackhide__`` would not be enough: ``--tb=native`` and ``--full-trace`` show such frames.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from itertools import pairwise
from types import TracebackType
from typing import Any

import pytest

import pytest_ddp
from pytest_ddp.protocol.messages import CODE, ERRORS
from pytest_ddp.rank.operations.origins import user_frame_of
from pytest_ddp.system.stdlib import traceback

_FOLDER = str(pytest_ddp.__file__).rpartition("/")[0] + "/"


class Tracebacks:
    """A pytest plugin that strips exceptions before any other plugin shows them."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: Any, call: pytest.CallInfo[Any]
    ) -> Generator[None, pytest.TestReport | None, pytest.TestReport | None]:
        if call.excinfo is not None:
            _strip(call.excinfo.value, set())
        # unittest's exceptions are kept with the item, with lists of their frames.
        for excinfo in getattr(item, "_excinfo", None) or ():
            _strip(excinfo.value, set())
            excinfo.traceback = type(excinfo.traceback)(excinfo.tb)
        report = yield
        error = None if call.excinfo is None else call.excinfo.value
        if report is not None and isinstance(error, BaseExceptionGroup):
            vars(report)[ERRORS] = list(_words_of(error))
        if report is not None and error is not None:
            # Not by getattr(): a test's exception may have a __getattr__ that raises.
            code = vars(error).get(CODE) or vars(type(error)).get(CODE)
            vars(report).update({CODE: code} if code else {})
        return report


def text_of(error: BaseException) -> str:
    """The error with its traceback, as text."""
    _strip(error, set())
    return "".join(traceback.format_exception(error))


def _words_of(error: BaseException) -> Iterator[str]:
    """The texts of a group's exceptions, without their tracebacks."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _words_of(inner)
    else:
        yield "".join(traceback.format_exception_only(error)).strip()


def line_of(error: BaseException) -> tuple[str, str, int]:
    """The error in one line, with file and line that raised it, in user code if possible."""
    words = traceback.format_exception_only(error)[-1].splitlines()[0]
    entries = [entry for entry in _entries(error.__traceback__) if not _is_ours(entry)]
    frame = user_frame_of(entry.tb_frame for entry in reversed(entries))
    if frame is None:  # raised by C code
        return words, __file__, 1
    code = frame.f_code
    return f"{words}, in {code.co_name}", code.co_filename, frame.f_lineno


def _strip(error: BaseException | None, seen: set[int]) -> None:
    """Remove our frames from an error, and from its causes, contexts and members."""
    if error is None or id(error) in seen:
        return
    seen.add(id(error))
    kept = [entry for entry in _entries(error.__traceback__) if not _is_ours(entry)]
    if kept:
        for entry, following in pairwise([*kept, None]):
            assert entry is not None
            entry.tb_next = following
        error.__traceback__ = kept[0]
    for other in (error.__cause__, error.__context__, *getattr(error, "exceptions", ())):
        _strip(other, seen)


def _entries(entry: TracebackType | None) -> Iterator[TracebackType]:
    while entry is not None:
        yield entry
        entry = entry.tb_next


def _is_ours(entry: TracebackType) -> bool:
    """True also for frames of contextlib that enter our context managers."""
    file = entry.tb_frame.f_code.co_filename
    if file == contextlib.__file__ and entry.tb_next is not None:
        file = entry.tb_next.tb_frame.f_code.co_filename
    return file.startswith(_FOLDER)
