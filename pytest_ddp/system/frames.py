"""Frames of all threads, read with the garbage collector off where it could end in a deadlock."""

from __future__ import annotations

import sys
from sys import _current_frames
from types import FrameType

from pytest_ddp.system.stdlib import gc

_COLLECTS_INSIDE = sys.version_info < (3, 12)
"""Whether the collector runs wherever an object is made, and not only between two instructions."""


class NoCollection:
    """Keeps the garbage collector off in a block that reads the frames of other threads.

    ``sys._current_frames`` holds the interpreter's list of threads while it makes objects. In
    Python 3.11 these can set off the collector. A ``threading.local`` that it frees then waits for
    the list, and so does a thread that begins or ends while a finalizer lets others run: the
    process stands still for ever. See https://github.com/python/cpython/issues/106883.
    """

    __slots__ = ("_was_on",)

    def __enter__(self) -> None:
        self._was_on = _COLLECTS_INSIDE and gc.isenabled()
        if self._was_on:
            gc.disable()

    def __exit__(self, *_: object) -> None:
        if self._was_on:
            gc.enable()


def current_frames() -> dict[int, FrameType]:
    """The innermost frame of each thread, by thread identifier."""
    with NoCollection():
        return _current_frames()
