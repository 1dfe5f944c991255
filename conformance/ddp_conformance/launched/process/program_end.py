"""The end of a forked process that stands for a program: as an interpreter ends."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import NoReturn

from ddp_conformance.framework.places import is_ours
from pytest_ddp.rank.exits.exiting import skip_torch_finalizers


def end_as_program(function: Callable[[], object]) -> NoReturn:
    """Call a function as a main program, and end this process with the code with which that ends.

    What it raises goes to ``sys.excepthook``, and then the functions of ``atexit`` are called: a
    program may choose its exit code in both. Objects are not finalized, which takes torch long.
    """
    code = 1
    try:
        code = _call(function)
        threading._shutdown()  # type: ignore[attr-defined]
        skip_torch_finalizers()
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with suppress(AttributeError, OSError, ValueError):
                stream.flush()
    finally:
        os._exit(code)


def _call(function: Callable[[], object]) -> int:
    try:
        function()
    except SystemExit as leaving:
        return _code_of(leaving)
    except BaseException as error:
        return _hooked(error)
    return 0


def _hooked(error: BaseException) -> int:
    shown = type(error), error, _users(error.__traceback__)
    try:
        sys.excepthook(*shown)
    except SystemExit as leaving:
        return _code_of(leaving)
    except BaseException as failed:
        print("Error in sys.excepthook:", file=sys.stderr)
        sys.__excepthook__(type(failed), failed, failed.__traceback__)
        print("\nOriginal exception was:", file=sys.stderr)
        sys.__excepthook__(*shown)
    return 1


def _code_of(leaving: SystemExit) -> int:
    if leaving.code is None:
        return 0
    if isinstance(leaving.code, int):
        return leaving.code & 0xFF
    print(leaving.code, file=sys.stderr)
    return 1


def _users(traceback: TracebackType | None) -> TracebackType | None:
    """The user's part of a stack, without our frames before the program's first."""
    first = traceback
    while first is not None and is_ours(first.tb_frame.f_code.co_filename):
        first = first.tb_next
    return first or traceback
