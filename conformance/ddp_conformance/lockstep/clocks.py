"""Sets the clock ahead, to find names and seeds that ranks take from it.

Ranks of a test start in the same second of one clock; those of a cluster do not, and no two runs
do. Only the time of day is ahead. Monotonic clocks, timeouts and the times of files stay as they
are.
"""

from __future__ import annotations

import ctypes
import datetime
import gc
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any
from unittest import mock

from ddp_conformance.framework.places import is_users

SECONDS = 3661
"""How far ahead one rank of a run is: another hour, minute and second."""
LATER = 400 * 86_400 + SECONDS
"""And how far a second run: another year, month and day, too."""

_shift = 0
"""Seconds added now. A module that is first imported in the block keeps our functions for good,
so they must add 0 after it."""


@contextmanager
def clock_ahead(seconds: int = SECONDS) -> Iterator[None]:
    """In the block, the clock of this process is ahead, also where it was imported by name."""
    global _shift
    clocks = {name: getattr(time, name) for name in _AHEAD}
    ahead = {id(clock): _AHEAD[name](clock) for name, clock in clocks.items()}
    with ExitStack() as patches:
        for module in (time, *filter(_is_users, list(sys.modules.values()))):
            for name, value in list(vars(module).items()):
                if id(value) in ahead:
                    patches.enter_context(mock.patch.object(module, name, ahead[id(value)]))
        patches.enter_context(_datetime_ahead())
        _shift = seconds
        try:
            yield
        finally:
            _shift = 0


def _is_users(module: ModuleType | None) -> bool:
    return is_users(getattr(module, "__file__", None) or "")


def _shifted(clock: Callable[[], int | float], unit: int = 1) -> Callable[[], int | float]:
    return lambda: clock() + _shift * unit


def _of_now(convert: Callable[..., Any]) -> Callable[..., Any]:
    """A conversion of seconds; by default of the current time."""
    return lambda seconds=None: convert(time.time() if seconds is None else seconds)


def _of_struct(convert: Callable[..., Any]) -> Callable[..., Any]:
    """A conversion of a time, the last argument; by default of the current time."""
    given = 2 if convert is time.strftime else 1

    def converted(*arguments: Any) -> Any:
        return convert(*arguments, *([] if len(arguments) == given else [time.localtime()]))

    return converted


_AHEAD: dict[str, Callable[[Any], Callable[..., Any]]] = {
    "time": _shifted,
    "time_ns": lambda clock: _shifted(clock, 10**9),
    "localtime": _of_now,
    "gmtime": _of_now,
    "ctime": _of_now,
    "strftime": _of_struct,
    "asctime": _of_struct,
}


@contextmanager
def _datetime_ahead() -> Iterator[None]:
    """Set ``datetime.now`` and ``utcnow`` ahead; ``today`` calls :mod:`time`.

    The class itself is changed: a class in its place would be another one to ``isinstance``, and
    would stay in every module that is imported in the block.
    """
    real = {name: vars(datetime.datetime)[name] for name in ("now", "utcnow")}
    _set_in_datetime({name: _later(method) for name, method in real.items()})
    try:
        yield
    finally:
        _set_in_datetime(real)


def _later(method: Any) -> Any:
    def later(cls: type[datetime.datetime], *arguments: Any, **options: Any) -> datetime.datetime:
        now: datetime.datetime = method.__get__(None, cls)(*arguments, **options)
        return now + datetime.timedelta(seconds=_shift)

    return classmethod(later)


def _set_in_datetime(methods: dict[str, Any]) -> None:
    # Attributes of C types cannot be set; the dictionary behind their proxy can be changed.
    (namespace,) = gc.get_referents(vars(datetime.datetime))
    namespace.update(methods)
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(datetime.datetime))
