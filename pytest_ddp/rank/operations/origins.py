"""Classifies frames by their code: the user's own, an installed package's, torch's or ours."""

from __future__ import annotations

import contextlib
import enum
import sysconfig
from collections.abc import Iterable, Iterator
from itertools import accumulate, chain, islice, repeat
from operator import getitem
from sys import _current_frames
from types import CodeType, FrameType, TracebackType
from typing import Any

import torch

import pytest_ddp
from pytest_ddp.system.frames import NoCollection


def user_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame of user code, else of any code but torch's and ours."""
    return user_frame_of(callers(frame))


def user_line(frame: FrameType | None) -> str:
    """``file:line`` of that frame; empty where there is none."""
    found = user_frame(frame)
    return "" if found is None else f"{found.f_code.co_filename}:{found.f_lineno}"


def user_frame_of(stack: Iterable[FrameType]) -> FrameType | None:
    """The frame that :func:`user_frame` finds, for a stack with its innermost frame first."""
    best: FrameType | None = None
    rank = _Origin.LIBRARY
    for frame in stack:
        origin = _origins[frame.f_code.co_filename]
        if origin is _USER:
            return frame
        if best is None or origin > rank:
            best, rank = frame, origin
    return best


def raised_at(trace: TracebackType | None) -> tuple[CodeType, int] | None:
    """The innermost line of user code in a traceback, else of any code but torch's and ours.

    None for an exception that torch itself handles: its traceback begins in torch.
    """
    best: tuple[CodeType, int] | None = None
    rank = _Origin.OTHERS
    while trace is not None:
        code = trace.tb_frame.f_code
        origin = _origins[code.co_filename]
        if best is None and origin is _Origin.LIBRARY:
            return None
        if origin >= rank:
            best, rank = (code, trace.tb_lineno), origin
        trace = trace.tb_next
    return best


def callers(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame of the current thread, and its callers."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def stack_of(thread: int | None) -> list[FrameType]:
    """The stack of any thread at one moment, innermost frame first.

    Read frame by frame in Python, it would be cut off at a generator that the thread leaves in the
    meantime. Here one call into C reads all frames, and no other thread runs during it.
    """
    item: Any = getitem
    attribute: Any = getattr
    # islice: map would ask for all frames once more, where an audit hook of Python lets others run.
    innermost = islice(map(item, iter(_current_frames, None), [thread]), 1)
    reading = accumulate(chain(innermost, repeat("f_back")), attribute)
    stack: list[FrameType] = []
    # KeyError: the thread has ended. AttributeError: the outermost frame has no caller.
    with NoCollection(), contextlib.suppress(KeyError, AttributeError):
        stack.extend(reading)
    return stack[:-1]


class _Origin(enum.IntEnum):
    LIBRARY = 0
    """torch, this plugin, or a wrapper of torch's functions."""
    OTHERS = 1
    """The standard library or an installed package."""
    USER = 2


_USER = _Origin.USER
_PUBLIC = (
    "/distributed/distributed_c10d.py",
    "/distributed/c10d_logger.py",
    "/pytest_ddp/rank/operations/methods.py",
    "/pytest_ddp/rank/operations/stream.py",
    "/typing_extensions.py",
    "/ddp_conformance/lockstep/lockstep.py",
)
"""Files of the public functions of torch.distributed, and of their wrappers: typing_extensions
wraps deprecated ones. lockstep.py is no user's code in a source checkout either, where it is not
below site-packages."""
_LIBRARY_FOLDERS = (
    str(torch.__file__).rpartition("/")[0] + "/",
    str(pytest_ddp.__file__).rpartition("/")[0] + "/",
)
_OTHERS_FOLDERS = tuple(
    {sysconfig.get_path(name) + "/" for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)


def _is_installed(file: str) -> bool:
    """True also for packages of another environment on the path, such as an outer one."""
    return "/site-packages/" in file or "/dist-packages/" in file


class _Origins(dict[str, _Origin]):
    """Origins by file name: a code object's hash is computed anew at each look-up."""

    def __missing__(self, file: str) -> _Origin:
        origin = _Origin.USER
        if file.startswith(_LIBRARY_FOLDERS) or file.endswith(_PUBLIC):
            origin = _Origin.LIBRARY
        elif file.startswith((*_OTHERS_FOLDERS, "<")) or _is_installed(file):
            origin = _Origin.OTHERS
        self[file] = origin
        return origin


_origins = _Origins()


_OWN_FOLDER = str(pytest_ddp.__file__).rpartition("/")[0] + "/rank/operations/"


class _OfStream(dict[str, bool]):
    def __missing__(self, file: str) -> bool:
        found = self[file] = file.startswith(_OWN_FOLDER)
        return found


_of_stream = _OfStream()


def is_of_stream(frame: FrameType) -> bool:
    """Whether a frame is one that stands between torch's Python and C++, or calls subscribers."""
    return _of_stream[frame.f_code.co_filename]


def is_of_torch(frame: FrameType) -> bool:
    """Whether a frame is one of torch's own Python."""
    return frame.f_code.co_filename.startswith(_LIBRARY_FOLDERS[0])


def outside(frame: FrameType | None) -> FrameType | None:
    """The innermost frame that is none of these, from a frame outwards."""
    while frame is not None and _of_stream[frame.f_code.co_filename]:
        frame = frame.f_back
    return frame


def called_by_user(frame: FrameType | None) -> bool:
    """Whether user code called the outermost public function of torch.distributed.

    False if another part of torch or a package did: groups that they make are not the test's.
    """
    while frame is not None and frame.f_code.co_filename.endswith(_PUBLIC):
        frame = frame.f_back
    return frame is not None and _origins[frame.f_code.co_filename] is _USER
