"""Time whole pytest sessions of two sizes: the slope is one more test, the rest the start."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

SUITES = Path(__file__).parent / "suites"
_LIMIT = 900


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to run the same tests."""

    name: str
    suite: str
    """File in ``suites/`` without its ending."""
    counts: tuple[int, int]
    """Numbers of tests of the short and the long session."""
    arguments: tuple[str, ...] = ()
    """For pytest."""
    launcher: tuple[str, ...] = ()
    """In the place of ``python``; the world size is appended to torchrun's."""
    world_size: int = 4


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds."""

    start: float
    """Of a session with no test, extrapolated."""
    test: float
    """Of one more test."""


def cost(candidate: Candidate, repeats: int) -> Cost:
    """Median over ``repeats`` runs of both sessions.

    Raises:
        RuntimeError: a session failed; its output is the message.
    """
    few, many = candidate.counts
    short = statistics.median(seconds(candidate, few) for _ in range(repeats))
    long = statistics.median(seconds(candidate, many) for _ in range(repeats))
    test = (long - short) / (many - few)
    return Cost(start=short - few * test, test=test)


def seconds(candidate: Candidate, count: int) -> float:
    """Run one session."""
    launcher = candidate.launcher or (sys.executable,)
    if launcher[0].endswith("torchrun"):
        launcher = (*launcher, f"--nproc-per-node={candidate.world_size}")
    suite = SUITES / f"{candidate.suite}.py"
    options = ("-q", "-p", "no:cacheprovider", "-c", os.devnull, f"--rootdir={SUITES}")
    command = [*launcher, "-m", "pytest", str(suite), *options, *candidate.arguments]
    with tempfile.TemporaryDirectory() as directory:
        begin = time.perf_counter()
        finished = subprocess.run(
            command,
            cwd=directory,
            env=os.environ
            | {
                "BENCHMARK_COUNT": str(count),
                "BENCHMARK_WORLD_SIZE": str(candidate.world_size),
                "OMP_NUM_THREADS": "1",
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LIMIT,
            check=False,
        )
        spent = time.perf_counter() - begin
    if finished.returncode != 0:
        raise RuntimeError(f"{candidate.name}:\n{finished.stdout}\n{finished.stderr}")
    return spent
