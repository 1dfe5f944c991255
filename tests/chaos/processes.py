"""The processes and the files of an inner run, distinguished from all others."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

VARIABLE = "CHAOS_RUN"
"""A variable in the environment of every process of a run, with the run's own value."""
SHM = Path("/dev/shm")
_OURS = "pytest_ddp.rank.main"


def of_run(run: str) -> list[psutil.Process]:
    """All processes of the run."""
    return [process for process in psutil.process_iter() if _belongs(process, run)]


def _belongs(process: psutil.Process, run: str) -> bool:
    with contextlib.suppress(psutil.Error, OSError):
        wanted = f"{VARIABLE}={run}".encode()
        dead = process.status() == psutil.STATUS_ZOMBIE
        return not dead and wanted in Path(f"/proc/{process.pid}/environ").read_bytes()
    return False


def targets(leader: int, kind: str) -> list[int]:
    """The process ids of pytest, or of its hosts or ranks.

    A host of shared imports is a fork of the one that was started, in its session; a rank leads
    a session of its own.
    """
    if kind == "pytest":
        return [leader]
    found = list(_of_the_plugin(leader))
    pids = {pid for pid, _, _ in found}
    started = {pid for pid, parent, _ in found if parent not in pids}
    if kind == "host":
        return [pid for pid, _, session in found if session in started]
    return [pid for pid, _, session in found if pid == session and pid not in started]


def _of_the_plugin(leader: int) -> Iterator[tuple[int, int, int]]:
    """Processes, their parents and sessions."""
    with contextlib.suppress(psutil.Error):
        for process in psutil.Process(leader).children(recursive=True):
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                if any(_OURS in word for word in process.cmdline()):
                    yield process.pid, process.ppid(), os.getsid(process.pid)


def survivors(run: str, limit: float) -> list[str]:
    """What still lives after so many seconds, a line each; it is killed then."""
    deadline = time.monotonic() + limit
    while (left := of_run(run)) and time.monotonic() < deadline:
        psutil.wait_procs(left, timeout=0.2)
    lines = []
    for process in left:
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            lines.append(f"{process.pid} {process.status()}: {' '.join(process.cmdline())[:100]}")
            os.kill(process.pid, signal.SIGKILL)
    return lines


def files_left(temporary: Path, pids: set[str]) -> list[str]:
    """Files in the run's directory of temporary files, and those of its ranks in /dev/shm."""
    named = ((entry, re.search(r"torch_(\d+)_", entry.name)) for entry in SHM.iterdir())
    shared = [str(entry) for entry, match in named if match and match[1] in pids]
    # A worker of a loader that nobody ends leaves its pymp-* under a plain pytest as well.
    return [*(str(p) for p in temporary.iterdir() if not p.match("pymp-*")), *shared]
