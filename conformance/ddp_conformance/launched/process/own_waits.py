"""Waits that no other rank ends: a rank sleeps, waits for a time, or for a process of its own.

While a rank is in one, another one that is late may not take it to wait for others.
"""

from __future__ import annotations

import functools
import math
import os
import selectors
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import sleep as sleep  # before it is replaced: for waits that are not the program's
from typing import Any, NamedTuple

PREFIX = "waits-"
"""The prefix of the files of a rank that exist while its threads wait, followed by the thread's
number."""


class OwnWait(NamedTuple):
    """A wait that a thread is in."""

    thread: int
    began: int
    """The begin of the wait, which distinguishes it from the thread's next one."""
    end: float
    """The end of the wait by the monotonic clock, which all processes share; infinite for that of a
    process."""


def own_waits(files: Path) -> Iterator[OwnWait]:
    """The own waits of the rank with these files."""
    for name in os.listdir(files):
        if name.startswith(PREFIX):
            with suppress(FileNotFoundError, ValueError):  # it is over, or just begins
                end = float((files / name).read_text())
                began = os.stat(files / name).st_mtime_ns
                yield OwnWait(int(name.removeprefix(PREFIX)), began, end)


def install(files: Path) -> None:
    """Note the waits of this process; its forks note none."""
    notes = _Notes(files)
    clock: Any = time
    clock.sleep = notes.around(sleep, lambda seconds: seconds)
    condition: Any = threading.Condition
    condition.wait = notes.around(condition.wait, lambda own, timeout=None: timeout)
    for name in ("PollSelector", "EpollSelector", "SelectSelector"):
        selector = getattr(selectors, name)
        selector.select = notes.around(selector.select, lambda own, timeout=None: timeout)
    popen: Any = subprocess.Popen
    for name in ("wait", "communicate"):
        setattr(popen, name, notes.around(getattr(popen, name), _of_a_process))
    os.system = notes.around(os.system, _of_a_process)
    for name in ("waitpid", "waitid"):
        setattr(os, name, notes.around(getattr(os, name), _of_a_child))


def _of_a_process(*args: Any, **kwargs: Any) -> float:
    return math.inf


def _of_a_child(*args: Any) -> float:
    """The last argument has the options."""
    return 0.0 if args[-1] & os.WNOHANG else math.inf


class _Notes:
    def __init__(self, files: Path) -> None:
        self._files = files
        self._owner = os.getpid()
        self._local = threading.local()

    def around(self, wait: Any, seconds: Callable[..., float | None]) -> Any:
        """The function, noted while it runs; one that waits for ever waits for another thread."""

        @functools.wraps(wait)
        def waiting(*args: Any, **kwargs: Any) -> Any:
            timeout = seconds(*args, **kwargs) or 0.0
            noted = getattr(self._local, "waits", False)  # as a part of another wait
            if noted or timeout <= 0 or os.getpid() != self._owner:
                return wait(*args, **kwargs)
            with self._noted(timeout):
                return wait(*args, **kwargs)

        return waiting

    @contextmanager
    def _noted(self, seconds: float) -> Iterator[None]:
        mark = self._files / f"{PREFIX}{threading.get_native_id()}"
        self._local.waits = True
        try:
            mark.write_text(str(time.monotonic() + seconds))
            yield
        finally:
            mark.unlink(missing_ok=True)
            self._local.waits = False
