"""Faults of a machine by which all ddp tests fail, or hang; pytest reports them.

Each text ends with a remedy. The tests' own errors would only be gloo's, or those of a worker,
which are not shown.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pytest_ddp.system import tempfiles
from pytest_ddp.system.stdlib import os, socket, tempfile, time

_SIOCGIFFLAGS = 0x8913
_IFF_UP = 1
_FLAGS = struct.Struct("16sH22x")
"""``struct ifreq``: the name of a network interface, and its flags."""


class MachineFault(NamedTuple):
    """Something about this machine that breaks ddp tests."""

    cause: str
    """The cause, as a sentence without its full stop."""
    fix: str

    def __str__(self) -> str:
        return f"{self.cause}. {self.fix}"


def problems() -> list[str]:
    """All faults of this machine; nearly always none."""
    return [str(fault) for fault in (loopback_problem(), tempdir_problem()) if fault is not None]


def loopback_problem(interface: str = "lo") -> MachineFault | None:
    """Why ranks on the CPU cannot communicate; None if they can, or if it is unknown."""
    if _may_be_up(interface):
        return None
    return MachineFault(
        f"the network interface {interface} is down or missing. gloo needs it: every test with a "
        f'gloo process group ends with "Unable to find address for: {interface}"',
        f"Bring it up before pytest starts, as root: ip link set {interface} up",
    )


def _may_be_up(interface: str) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            answer = fcntl.ioctl(sock, _SIOCGIFFLAGS, _FLAGS.pack(interface.encode(), 0))
        except OSError as error:
            # A sandbox that forbids this call may have the interface all the same.
            return error.errno != errno.ENODEV
    return bool(_FLAGS.unpack(answer)[1] & _IFF_UP)


def tempdir_problem() -> MachineFault | None:
    """Why DataLoader workers would hang; None if they would not."""
    with contextlib.suppress(OSError):  # a missing temporary directory is reported elsewhere
        directory = tempfile.gettempdir()
        length = len(os.fsencode(directory))
        if length > tempfiles.LONGEST_TEMPDIR:
            return MachineFault(
                f"the temporary directory has a path of {length} characters, and at most "
                f"{tempfiles.LONGEST_TEMPDIR} leave room for the sockets of multiprocessing in it "
                '("AF_UNIX path too long"): DataLoader workers of ddp tests will hang',
                "Set TMPDIR to a shorter one before pytest starts, such as /tmp. "
                f"It is {directory}",
            )
    return None


# ------------------------------------------------------------------
# Reads the kernel's OOM-kill counters, to tell an OOM kill from any other SIGKILL.

_ROOT = Path("/")
_COUNT = b"\noom_kill "
_RECENT = 1.0
"""Seconds for which counts are reused at the begin of a test."""
_LONGEST = 1 << 16
"""Bytes to read of a file of counters, which the kernel returns whole in one read."""


@dataclass(frozen=True)
class OomKills:
    """Processes that were killed for lack of memory, since counting began."""

    group: int
    """The number of kills in the control group of this process and its ranks; 0 if unknown."""
    machine: int
    """The number of kills on this machine, whoever owned them; 0 if unknown."""

    def since(self, before: OomKills) -> str:
        """What was killed since ``before``, as the end of a sentence; empty for nothing."""
        if self.group > before.group:
            return f"killed {_processes(self.group - before.group)} of this control group"
        if self.machine > before.machine:
            return f"killed {_processes(self.machine - before.machine)} on this machine"
        return ""


class OomKillWatch:
    """Reports processes that were killed for lack of memory during a test, test after test.

    Many short tests share a reading, since reading the counters is a twelfth of the time that such
    a test costs the pytest process. So a process that was killed within the second before a test
    may be reported with that test if it fails.
    """

    def __init__(self, root: Path = _ROOT) -> None:
        """
        Args:
            root: folder of ``/proc`` and ``/sys``.
        """
        self._root = root
        self._counted = OomKills(0, 0)
        self._at = -math.inf

    def begin(self) -> None:
        """Begin a test."""
        if time.monotonic() > self._at + _RECENT:
            self._count()

    def end(self) -> str:
        """What was killed since the begin, as :meth:`OomKills.since`; reported only once."""
        before = self._counted
        self._count()
        return self._counted.since(before)

    def _count(self) -> None:
        self._counted, self._at = count_oom_kills(self._root), time.monotonic()


def count_oom_kills(root: Path = _ROOT) -> OomKills:
    """Read the kernel's counters, for control groups of either version; takes some 30 us.

    Args:
        root: folder of ``/proc`` and ``/sys``.
    """
    counts = (_count(path) for path in _group_files(root))
    group = next((count for count in counts if count is not None), 0)
    return OomKills(group, _count(root / "proc/vmstat") or 0)


@functools.cache
def _group_files(root: Path) -> tuple[Path, ...]:
    # Cached, as the counters are read before tests. That a process may be moved to another group is
    # not worth a search each time.
    return tuple(path for path in _candidates(root) if path.exists())


def _candidates(root: Path) -> Iterator[Path]:
    groups = root / "sys/fs/cgroup"
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            # A container may see its own group as the root, under a path from outside.
            for folder in (path.lstrip("/"), ""):
                if controllers == "memory":
                    yield groups / "memory" / folder / "memory.oom_control"
                elif not controllers:
                    yield groups / folder / "memory.events"


def _count(path: Path) -> int | None:
    # pathlib and a regular expression would take three times as long, before each test.
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
