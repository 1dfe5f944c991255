"""Forks of a rank: DataLoader workers are forked while threads of gloo run.

A thread of gloo that drops the last reference to a tensor takes Python's lock on its thread states,
without the GIL. A child that is forked at that moment inherits the lock as taken, and waits for it
inside ``os.fork`` for ever (python/cpython#112275, fixed in 3.11.10); other locks of C++ can be
inherited in the same way. It does not help that a test has ended its collectives: the references
are dropped a moment later.
"""

from __future__ import annotations

from pytest_ddp.system import processes
from pytest_ddp.system.own import os, threading, time

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
    try:
        stat = processes.read(f"{task}/stat")
    except OSError:  # the thread has ended
        return True
    return stat.rpartition(b")")[2].split()[0] != b"R"
