"""Start a training entry on several ranks of this machine and wait for the first to break."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch._C._distributed_c10d import TCPStore

from .report import CrashReport, cause_of, look, tail_of_stderr

GRACE = 2.0
"""Seconds that the others get to end by themselves once a rank has broken."""
ENDING = 2.0
"""Seconds that a rank gets to end when it has been stopped, before it is killed."""


def crash_report(
    program: Sequence[str], *, ranks: int = 2, timeout: float = 600.0, cwd: Path | None = None
) -> CrashReport:
    """Run ``program`` on ``ranks`` ranks and say who broke first, and where.

    ``program`` is what stands after ``python``: a file, or ``-m`` and a module, and its
    arguments. It finds torchrun's environment, and may call ``init_process_group`` once.
    After ``timeout`` seconds all ranks are stopped, and the report says where they were.
    """
    with tempfile.TemporaryDirectory(prefix="ddp-crash-") as name:
        directory = Path(name)
        # The store lives here, so that it outlives whichever rank dies. No port is probed.
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        processes = [
            _start(program, directory, _environment(rank, ranks, store.port), cwd)
            for rank in range(ranks)
        ]
        try:
            died, stopped = _watch(processes, directory, timeout)
        finally:
            for process in processes:
                _end(process)
        ends = tuple(
            look(directory, rank, process.returncode, stopped=rank in stopped)
            for rank, process in enumerate(processes)
        )
        broken = [ends[rank] for rank in (*died, *sorted(stopped)) if not ends[rank].well]
        cause = cause_of(broken)
        said = "" if cause is None else tail_of_stderr(directory, cause.rank)
        return CrashReport(ends, cause, said)


def _environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    return {
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }


def _start(
    program: Sequence[str], directory: Path, environment: Mapping[str, str], cwd: Path | None
) -> "subprocess.Popen[bytes]":
    files = directory / f"rank-{environment['RANK']}"
    with files.with_suffix(".out").open("wb") as out, files.with_suffix(".err").open("wb") as err:
        return subprocess.Popen(
            [sys.executable, "-m", "ddp_reference.diagnosis.rank", str(directory), *program],
            env=environment,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,  # its workers go with it
        )


def _watch(
    processes: Sequence["subprocess.Popen[bytes]"], directory: Path, timeout: float
) -> tuple[list[int], set[int]]:
    """Ranks in the order in which they ended by themselves, and those that had to be stopped."""
    poll = select.poll()
    ranks = {os.pidfd_open(process.pid): rank for rank, process in enumerate(processes)}
    for descriptor in ranks:
        poll.register(descriptor, select.POLLIN)
    died: list[int] = []
    deadline = time.monotonic() + timeout
    while ranks and (left := deadline - time.monotonic()) > 0:
        for descriptor, _ in poll.poll(left * 1000):
            poll.unregister(descriptor)
            os.close(descriptor)
            rank = ranks.pop(descriptor)
            died.append(rank)
            done = (directory / f"rank-{rank}.done").exists()
            if processes[rank].wait() != 0 or not done:
                deadline = min(deadline, time.monotonic() + GRACE)
    for descriptor in ranks:
        os.close(descriptor)
    return died, set(ranks.values())


def _end(process: "subprocess.Popen[bytes]") -> None:
    """SIGTERM, which leaves a stack, then SIGKILL for it and all that it has started."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(ENDING)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
