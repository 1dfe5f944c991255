"""Processes as Linux shows them: children, sessions, names."""

from __future__ import annotations

import contextlib
import ctypes
from dataclasses import dataclass

from pytest_ddp.system.own import os, signal

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37
_CHUNK = 1 << 16
_libc = ctypes.CDLL(None, use_errno=True)


def read(path: str) -> bytes:
    """The contents of a file in ``/proc``. Not read by ``pathlib``, whose methods tests patch.

    Raises:
        OSError: it cannot be read, for example since the process has ended.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return b"".join(iter(lambda: os.read(descriptor, _CHUNK), b""))
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Process:
    """One entry of ``/proc``."""

    pid: int
    parent: int
    session: int
    command: str
    """Its command line; for a forked process, its parent's."""
    name: str
    """The kernel's name for it: the program's, or one that the process has set."""


def children(pid: int | None = None) -> list[Process]:
    """The living children of a process (of this one by default), oldest first."""
    if pid is None and not has_children():
        return []
    found = []
    with contextlib.suppress(OSError):
        tasks = f"/proc/{pid or os.getpid()}/task"
        for task in os.listdir(tasks):
            found += [int(child) for child in read(f"{tasks}/{task}/children").split()]
    processes = (look(child) for child in found)
    return [process for process in processes if process is not None]


def has_children() -> bool:
    """True while there is a child, including one that has ended and is not reaped.

    One system call instead of a search through /proc, as most tests start no process.
    """
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def look(pid: int) -> Process | None:
    """A process by its number; None if it does not exist, or has ended."""
    try:
        stat = read(f"/proc/{pid}/stat").decode(errors="replace")
        command = read(f"/proc/{pid}/cmdline").replace(b"\0", b" ").decode(errors="replace")
    except (OSError, LookupError):
        return None
    head, _, tail = stat.rpartition(")")
    state, parent, _, session = tail.split()[:4]
    if state == "Z":
        return None
    name = head.partition("(")[2]
    return Process(pid, int(parent), int(session), command.strip() or name, name)


def kill_group(leader: int) -> None:
    """Kill the process group of a recorded leader, if it still exists."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def die_with_parent(parent: int) -> None:
    """Make the kernel send SIGKILL to this process when the parent's forking thread ends.

    Needed for a rank that holds the GIL, which cannot notice that its channel has ended.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # Checked afterwards: the parent may have ended before.
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def outlive_parent() -> None:
    """Undo :func:`die_with_parent`."""
    _libc.prctl(_PR_SET_PDEATHSIG, 0, 0, 0, 0)


def adopt_orphans(adopts: bool = True) -> None:
    """Become the parent of descendants whose own parent ends, so that they can be killed.

    Args:
        adopts: False to undo it.
    """
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, int(adopts), 0, 0, 0)


def adopts_orphans() -> bool:
    """Whether this process adopts orphans."""
    found = ctypes.c_int(0)
    _libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(found), 0, 0, 0)
    return found.value != 0


def umask() -> int:
    """The umask of this process; the system call that returns it would also change it."""
    status = read("/proc/self/status")
    _, _, found = status.partition(b"\nUmask:")
    return int(found.split()[0], 8)
