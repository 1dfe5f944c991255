"""Sets clocks ahead, to find names, seeds and decisions that ranks take from them.

Ranks of a test start in the same second of one clock; those of a cluster do not, and no two runs
do. Nor does time pass equally fast: one rank looks at its clock a moment after the others.

Linux has no clock of the time of day for one process: a time namespace has other monotonic clocks
alone, and a library that replaces C's functions would have to be compiled. So the functions of
Python and NumPy are changed. Other C code reads the machine's clock, as do programs that are
started, and files have its times.
"""

from __future__ import annotations

import ctypes
import datetime
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import BuiltinFunctionType
from typing import Any, TypeAlias
from unittest import mock

import numpy  # noqa: F401 - whose library is changed

from ddp_conformance.lockstep import c_calls, c_functions
from ddp_conformance.lockstep.c_functions import Function
from pytest_ddp.system import stdlib

SECONDS = 3661
"""How far ahead one rank of a run is: another hour, minute and second."""
LATER = 400 * 86_400 + SECONDS
"""How far ahead the clocks of a second run are: another year, month and day, too."""

_Change: TypeAlias = Callable[[Function], Function]


class _Gained(threading.local):
    """Seconds that have been gained in this thread alone: for a watchdog in another no hour may go
    by.
    """

    seconds = 0


_ahead = 0
_gained = _Gained()


@contextmanager
def clock_ahead(seconds: int = SECONDS) -> Iterator[None]:
    """A block in which the time of day of this process is ahead, and no other clock."""
    global _ahead
    with _replaced(_TIME_OF_DAY), _datetime_ahead(), _uuid_ahead(), _numpy_ahead():
        _ahead = seconds
        try:
            yield
        finally:
            _ahead = 0


@contextmanager
def clocks_gain() -> Iterator[Callable[[], None]]:
    """A block in which the time of day is ahead, and a call lets all clocks of this thread gain
    more.

    Who compares two times, be they of a monotonic clock, sees that much time go by between them.
    """

    def gain() -> None:
        _gained.seconds += SECONDS

    with clock_ahead(), _replaced(_STEADY):
        try:
            yield gain
        finally:
            _gained.seconds = 0


def _time_of_day(clock: Function, unit: int = 1) -> Function:
    return lambda: clock() + (_ahead + _gained.seconds) * unit


def _steady(clock: Function, unit: int = 1) -> Function:
    return lambda: clock() + _gained.seconds * unit


def _of_a_number(clock: Function, unit: int = 1) -> Function:
    """A clock of many: those of the kernel that have the time of day, and others."""

    def read(number: int) -> Any:
        ahead = _ahead if number in _NUMBERS_OF_TIME_OF_DAY else 0
        return clock(number) + (ahead + _gained.seconds) * unit

    return read


_NUMBERS_OF_TIME_OF_DAY = {time.CLOCK_REALTIME, 5, time.CLOCK_TAI}
"""5 is ``CLOCK_REALTIME_COARSE``, for which Python has no name."""


def _of_now(convert: Function) -> Function:
    """A conversion of seconds; by default of the current time."""
    return lambda seconds=None: convert(time.time() if seconds is None else seconds)


def _of_struct(convert: Function) -> Function:
    """A conversion of a time, the last argument; by default of the current time."""
    given = 2 if convert.__name__ == "strftime" else 1

    def converted(*arguments: Any) -> Any:
        return convert(*arguments, *([] if len(arguments) == given else [time.localtime()]))

    return converted


def _in_nanoseconds(kind: Callable[[Function, int], Function]) -> _Change:
    return lambda clock: kind(clock, 10**9)


_TIME_OF_DAY: dict[str, _Change] = {
    "time": _time_of_day,
    "time_ns": _in_nanoseconds(_time_of_day),
    "clock_gettime": _of_a_number,
    "clock_gettime_ns": _in_nanoseconds(_of_a_number),
    "localtime": _of_now,
    "gmtime": _of_now,
    "ctime": _of_now,
    "strftime": _of_struct,
    "asctime": _of_struct,
}
_STEADY: dict[str, _Change] = {
    "monotonic": _steady,
    "monotonic_ns": _in_nanoseconds(_steady),
    "perf_counter": _steady,
    "perf_counter_ns": _in_nanoseconds(_steady),
    "process_time": _steady,
    "process_time_ns": _in_nanoseconds(_steady),
    "thread_time": _steady,
    "thread_time_ns": _in_nanoseconds(_steady),
}


# ---------------------------------------------------------------- functions of time


@contextmanager
def _replaced(table: dict[str, _Change]) -> Iterator[None]:
    """Change functions of :mod:`time`, wherever they are kept: under another name, as a default."""
    with ExitStack() as block:
        for name, changed in table.items():
            function = getattr(time, name)
            if not isinstance(function, BuiltinFunctionType):
                continue  # a test has replaced it
            real = c_functions.copy(function)
            # The plugin keeps these functions, from before any test, and tells time by them.
            block.enter_context(mock.patch.object(stdlib.time, name, real))
            block.enter_context(c_functions.calling(function, changed(real)))
        yield


# ---------------------------------------------------------------- datetime, uuid and NumPy


@contextmanager
def _datetime_ahead() -> Iterator[None]:
    """Set ``datetime.now`` and ``utcnow`` ahead; ``today`` calls :mod:`time`.

    The methods themselves are changed. A class in the place of ``datetime`` would be another one
    to ``isinstance``, and would stay in every module that is imported in the block; and a method
    may have been kept, as by ``field(default_factory=datetime.now)``.
    """

    def later(now: datetime.datetime) -> datetime.datetime:
        return now + datetime.timedelta(seconds=_ahead + _gained.seconds)

    with ExitStack() as block:
        for method in (datetime.datetime.now, datetime.datetime.utcnow):
            if isinstance(method, BuiltinFunctionType):
                block.enter_context(c_functions.returning(method, later))
        yield


@contextmanager
def _uuid_ahead() -> Iterator[None]:
    """Set the times of new UUIDs ahead, also those that C makes, and forget them after it."""
    generate = uuid._generate_time_safe  # type: ignore[attr-defined]

    def later() -> tuple[bytes, Any]:
        made, safe = generate()
        old = uuid.UUID(bytes=made)
        ticks = old.time + (_ahead + _gained.seconds) * 10**7
        low, middle, high = ticks & 0xFFFFFFFF, ticks >> 32 & 0xFFFF, ticks >> 48 | 1 << 12
        return uuid.UUID(fields=(low, middle, high, *old.fields[3:])).bytes, safe

    with ExitStack() as block:
        for name, value in list(vars(uuid).items()):
            if name.startswith("_last_"):
                block.enter_context(mock.patch.object(uuid, name, value))
        if generate is not None:
            block.enter_context(mock.patch.object(uuid, "_generate_time_safe", later))
        yield


_NUMPYS_LIBRARY: str = next(
    getattr(sys.modules[f"{package}._multiarray_umath"], "__file__", "")
    for package in ("numpy._core", "numpy.core")
    if f"{package}._multiarray_umath" in sys.modules
)
"""NumPy 1 has another name for it."""


@contextmanager
def _numpy_ahead() -> Iterator[None]:
    """Set ``datetime64("now")`` and ``"today"`` ahead: NumPy asks C's ``time`` for them alone."""
    with c_calls.replaced("time", _C_TIME, library=_NUMPYS_LIBRARY):
        yield


def _time(result: int | None) -> int:
    """Stand in for time(2)."""
    seconds = int(time.time())
    if result is not None:
        ctypes.c_long.from_address(result).value = seconds
    return seconds


_C_TIME = ctypes.PYFUNCTYPE(ctypes.c_long, ctypes.c_void_p)(_time)
