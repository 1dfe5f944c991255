"""How often the kernel's out-of-memory killer has struck: who else sends SIGKILL tells nobody."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pytest_ddp.system.own import os, time

_ROOT = Path("/")
_COUNT = b"\noom_kill "
_RECENT = 1.0
"""Seconds."""
_LONGEST = 1 << 16
"""Bytes of a file of counters, which the kernel gives whole to one read of so many."""


@dataclass(frozen=True)
class OomKills:
    """Processes that were killed for want of memory, since counting began."""

    group: int
    """In the control group of this process, which its ranks share; 0 where it is unknown."""
    machine: int
    """On this machine, whoever they belonged to; 0 where it is unknown."""

    def since(self, before: OomKills) -> str:
        """What has happened since ``before``, as the end of a sentence; empty for nothing."""
        if self.group > before.group:
            return f"killed {_processes(self.group - before.group)} of this control group"
        if self.machine > before.machine:
            return f"killed {_processes(self.machine - before.machine)} on this machine"
        return ""


class OomWatch:
    """Tells whether the killer has struck during a test, of tests one after the other.

    The counters are read for many short tests at a time, since to read them is a twelfth of what
    such a test costs the process that waits for it. So one that was killed within the second
    before a test that fails may be told of with that test.
    """

    def __init__(self, root: Path = _ROOT) -> None:
        """
        Args:
            root: where ``/proc`` and ``/sys`` are found.
        """
        self._root = root
        self._counted = OomKills(0, 0)
        self._at = -math.inf

    def begin(self) -> None:
        """A test begins."""
        if time.monotonic() > self._at + _RECENT:
            self._count()

    def end(self) -> str:
        """What has happened since then, as of :meth:`OomKills.since`; told once."""
        before = self._counted
        self._count()
        return self._counted.since(before)

    def _count(self) -> None:
        self._counted, self._at = count_oom_kills(self._root), time.monotonic()


def count_oom_kills(root: Path = _ROOT) -> OomKills:
    """Read the kernel's counters, of control groups of either version; some 30 us.

    Args:
        root: where ``/proc`` and ``/sys`` are found.
    """
    counts = (_count(path) for path in _group_files(root))
    group = next((count for count in counts if count is not None), 0)
    return OomKills(group, _count(root / "proc/vmstat") or 0)


@functools.cache
def _group_files(root: Path) -> tuple[Path, ...]:
    # Before each test the counters are read. A process that is moved to another group is
    # not worth finding them anew.
    return tuple(path for path in _candidates(root) if path.exists())


def _candidates(root: Path) -> Iterator[Path]:
    groups = root / "sys/fs/cgroup"
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            # A container may see its own group as the root, under a path of the outside.
            for folder in (path.lstrip("/"), ""):
                if controllers == "memory":
                    yield groups / "memory" / folder / "memory.oom_control"
                elif not controllers:
                    yield groups / folder / "memory.events"


def _count(path: Path) -> int | None:
    # Not by pathlib and a pattern, at three times the cost: each test begins with it.
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _, _, found = (b"\n" + os.read(descriptor, _LONGEST)).partition(_COUNT)
        finally:
            os.close(descriptor)
        return int(found.partition(b"\n")[0]) if found else None
    return None


def _processes(number: int) -> str:
    return "a process" if number == 1 else f"{number} processes"
