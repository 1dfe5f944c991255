"""Processes as Linux shows them: children, sessions, names."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pytest_ddp.system.stdlib import os, select, signal, threading, time

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
    """The process's command line; for a forked process, its parent's."""
    name: str
    """The kernel's name for the process: the program's, or one that the process has set."""


def children(pid: int | None = None) -> list[Process]:
    """The living children of a process (of this one by default), oldest first."""
    if pid is None and not has_children():
        return []
    found = []
    with contextlib.suppress(OSError):
        tasks = f"/proc/{pid or os.getpid()}/task"
        for task in os.listdir(tasks):
            found += [int(child) for child in read(f"{tasks}/{task}/children").split()]
    processes = (process_of(child) for child in found)
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


def process_of(pid: int) -> Process | None:
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


def state_of(folder: str) -> str:
    """The letter of proc(5) for the state of a process or a thread; empty if it has ended.

    Args:
        folder: its folder in ``/proc``.
    """
    try:
        stat = read(f"{folder}/stat")
    except OSError:
        return ""
    return stat.rpartition(b")")[2].split()[0].decode()


def wait_for_end(pids: Iterable[int], seconds: float) -> None:
    """Wait until one of these processes has ended, whoever reaps it, or the time is over."""
    poll, watches = select.poll(), []
    try:
        for pid in pids:
            watches.append(os.pidfd_open(pid))
            poll.register(watches[-1], select.POLLIN)
        poll.poll(seconds * 1000)
    except ProcessLookupError:  # it has ended
        pass
    finally:
        for watch in watches:
            os.close(watch)


def is_fork(process: Process) -> bool:
    """Whether a child runs this process's program, so that its command line is no description."""
    own = process_of(os.getpid())
    return own is not None and process.command == own.command


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


# ------------------------------------------------------------------
# Forks of a rank: DataLoader workers are forked while threads of gloo run.
#
# A thread of gloo that drops the last reference to a tensor takes Python's lock on its thread
# states, without the GIL. A child that is forked at that moment inherits the lock as taken, and
# waits for it inside ``os.fork`` for ever (python/cpython#112275, fixed in 3.11.10); other locks of
# C++ can be inherited in the same way. It does not help that a test has ended its collectives: the
# references are dropped a moment later.


PATIENCE = 0.05
"""Seconds to wait for the other threads; one that computes without a pause never sleeps."""
_TASKS = "/proc/self/task"


def watch() -> None:
    """Delay all forks from now on until the other threads of this process sleep.

    Called before other code registers a hook: these hooks run last to first, and nothing should
    run between the look at the threads and the fork.
    """
    os.register_at_fork(before=wait_for_sleep)


def wait_for_sleep(patience: float = PATIENCE) -> bool:
    """Wait until no other thread runs; returns False if one still does.

    A thread that waits for the GIL sleeps as well, and holds no other lock of Python's.
    """
    end = time.monotonic() + patience
    # Polled, as the kernel does not notify of a thread that falls asleep.
    while not all_sleep(_TASKS, threading.get_native_id()):
        if time.monotonic() > end:
            return False
        os.sched_yield()
    return True


def all_sleep(tasks: str, but: int) -> bool:
    """Whether all threads of a process but one sleep.

    Args:
        tasks: its ``/proc/PID/task``.
        but: the calling thread.
    """
    return all(_sleeps(f"{tasks}/{name}") for name in os.listdir(tasks) if name != str(but))


def _sleeps(task: str) -> bool:
    return state_of(task) != "R"


# ------------------------------------------------------------------
# Huge pages, for the memory of a process that forks often.

_SIZE = 1 << 21
_COLLAPSE = 25
"""``MADV_COLLAPSE`` of Linux 6.1."""
_MOST = 1 << 28
"""Bytes of a mapping; a larger one is data, whose copying would take seconds."""


def collapse() -> None:
    """Move the memory of this process to huge pages, so that a fork has a shorter table to copy.

    With torch imported there are some 40,000 pages: a fork and its end then take 4 ms of processor
    time instead of 14. The move takes some 0.2 s; if the kernel refuses, nothing changes.
    """
    libc = ctypes.CDLL(None)
    for first, last in list(_anonymous()):
        begin, end = -(-first // _SIZE) * _SIZE, last // _SIZE * _SIZE
        if 0 < end - begin <= _MOST:
            libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), _COLLAPSE)


def _anonymous() -> Iterator[tuple[int, int]]:
    """Addresses of private memory that belongs to no file, from proc(5)."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        place, rights, _, _, inode, *_ = line.split()
        if rights == "rw-p" and inode == "0":
            first, last = place.split("-")
            yield int(first, 16), int(last, 16)
