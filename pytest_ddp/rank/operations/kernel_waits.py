"""The system call in which the kernel has put a thread of this process to sleep.

What a thread waits for in C cannot be read from its Python frames: ``sleep``, ``flock`` and
``lock.acquire`` leave the frame of their caller. ``/proc/self/task/TID/syscall`` has the number of
the call and its arguments (proc(5)); it takes no lock of the thread, and does not stop it. Where
the kernel has no such file, or the machine is another one, nothing is known.
"""

from __future__ import annotations

import enum
import platform
from typing import NamedTuple

from pytest_ddp.system import processes
from pytest_ddp.system.stdlib import os, threading


class Call(enum.Enum):
    """What a system call waits for."""

    SLEEP = enum.auto()
    FLOCK = enum.auto()
    LOCK = enum.auto()
    """A lock of the process: Python's, or one of C++, which waits so for other ranks as well."""
    DESCRIPTOR = enum.auto()
    CHILD = enum.auto()


class BlockedCall(NamedTuple):
    """The call that a thread sleeps in."""

    call: Call
    is_timed: bool
    """Whether the call returns after a time."""


_NEVER = 0xFFFF_FFFF
"""A limit of -1 milliseconds, as the kernel shows it: 32 bits of it count."""
_NULL = 0

_Row = tuple[Call, int | None, int]
"""What a call waits for, its argument that is the limit, and the value of that for no limit."""


class _Numbers(NamedTuple):
    """The numbers of the calls on one machine; -1 for one that it lacks."""

    nanosleep: int
    clock_nanosleep: int
    flock: int
    fcntl: int
    futex: int
    poll: int
    ppoll: int
    select: int
    pselect: int
    epoll_wait: int
    epoll_pwait: int
    read: int
    recvfrom: int
    recvmsg: int
    accept: int
    accept4: int
    wait4: int
    waitid: int

    def rows(self) -> dict[int, _Row]:
        """The table of the calls, by their numbers."""
        found: dict[int, _Row] = {
            self.nanosleep: (Call.SLEEP, None, 0),
            self.clock_nanosleep: (Call.SLEEP, None, 0),
            self.flock: (Call.FLOCK, None, 0),
            self.fcntl: (Call.FLOCK, None, 0),
            self.futex: (Call.LOCK, 3, _NULL),
            self.poll: (Call.DESCRIPTOR, 2, _NEVER),
            self.ppoll: (Call.DESCRIPTOR, 2, _NULL),
            self.select: (Call.DESCRIPTOR, 4, _NULL),
            self.pselect: (Call.DESCRIPTOR, 4, _NULL),
            self.epoll_wait: (Call.DESCRIPTOR, 3, _NEVER),
            self.epoll_pwait: (Call.DESCRIPTOR, 3, _NEVER),
            self.wait4: (Call.CHILD, None, 0),
            self.waitid: (Call.CHILD, None, 0),
        }
        reads = (self.read, self.recvfrom, self.recvmsg, self.accept, self.accept4)
        found.update(dict.fromkeys(reads, (Call.DESCRIPTOR, None, 0)))
        found.pop(-1, None)
        return found


_NUMBERS = {
    "x86_64": _Numbers(
        *(35, 230, 73, 72, 202, 7, 271, 23, 270, 232, 281, 0, 45, 47, 43, 288, 61, 247)
    ),
    "aarch64": _Numbers(
        *(101, 115, 32, 25, 98, -1, 73, -1, 72, -1, 22, 63, 207, 212, 202, 242, 260, 95)
    ),
}
_machine = _NUMBERS.get(platform.machine())
_ROWS = {} if _machine is None else _machine.rows()


def kernels_number(thread: threading.Thread) -> int:
    """The kernel's number of a thread of this process; 0 for one that has not begun."""
    # Python up to 3.12 keeps the number that the main thread had before a fork.
    return os.getpid() if thread is threading.main_thread() else thread.native_id or 0


def blocked(thread: int) -> BlockedCall | None:
    """The call that a thread of this process sleeps in; None if it runs, or that is not known.

    Args:
        thread: the kernel's number of it.
    """
    try:
        text = processes.read(f"/proc/self/task/{thread}/syscall")
    except OSError:  # it has ended, or the kernel has no such file
        return None
    number, *arguments = text.split()
    row = _ROWS.get(int(number)) if number.isdigit() else None  # "running"
    if row is None:
        return None
    call, limit, none = row
    if limit is None:
        return BlockedCall(call, is_timed=call is Call.SLEEP)
    given = int(arguments[limit], 16)
    return BlockedCall(call, is_timed=(given & _NEVER if none == _NEVER else given) != none)
