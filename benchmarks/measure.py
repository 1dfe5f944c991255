"""Time whole pytest sessions of two sizes: the slope is one more test, the rest the start."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    """Arguments for pytest."""
    launcher: tuple[str, ...] = ()
    """The command in the place of ``python``, with the number of ranks for ``{world_size}``."""
    world_size: int = 4
    environment: Mapping[str, str] = field(default_factory=dict)

    def on(self, ranks: int) -> Candidate:
        """This candidate with another number of ranks."""
        return replace(self, world_size=ranks)


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds of one session."""

    wall: float
    cpu: float
    """Processor time of all processes of the session, user and system."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of tests, in seconds."""

    start: float
    """The cost of a session with no test, extrapolated."""
    test: float
    """The cost of one more test."""
    cpu: float
    """Processor time of all processes for one more test: it hardly depends on what else the machine
    does."""


def costs(candidates: Sequence[Candidate], repeats: int) -> list[Cost]:
    """Median over ``repeats`` runs of both sessions.

    The candidates take turns, so that a machine that gets slower does so for all.

    Raises:
        RuntimeError: a session failed; its output is the message.
    """
    runs = [
        [(session(candidate, candidate.counts[0]), session(candidate, candidate.counts[1]))]
        for candidate in candidates
    ]
    for _ in range(repeats - 1):
        for candidate, pairs in zip(candidates, runs, strict=True):
            few, many = candidate.counts
            pairs.append((session(candidate, few), session(candidate, many)))
    return [_cost(candidate, pairs) for candidate, pairs in zip(candidates, runs, strict=True)]


def _cost(candidate: Candidate, pairs: Sequence[tuple[Spent, Spent]]) -> Cost:
    few, many = candidate.counts
    short = statistics.median(pair[0].wall for pair in pairs)
    long = statistics.median(pair[1].wall for pair in pairs)
    test = (long - short) / (many - few)
    cpu = statistics.median(pair[1].cpu - pair[0].cpu for pair in pairs) / (many - few)
    return Cost(start=short - few * test, test=test, cpu=cpu)


def session(candidate: Candidate, count: int) -> Spent:
    """Run one session.

    Raises:
        RuntimeError: it failed; its output is the message.
    """
    print(f"{candidate.name}, {candidate.world_size} ranks, {count} tests", file=sys.stderr)
    launcher = candidate.launcher or (sys.executable,)
    launcher = tuple(word.format(world_size=candidate.world_size) for word in launcher)
    variables = {
        "BENCHMARK_COUNT": str(count),
        "BENCHMARK_WORLD_SIZE": str(candidate.world_size),
        "OMP_NUM_THREADS": "1",
        **candidate.environment,
    }
    return run(candidate.suite, candidate.arguments, variables, launcher)


def run(
    suite: str,
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    launcher: Sequence[str] = (sys.executable,),
    limit: float = _LIMIT,
) -> Spent:
    """Run pytest on a file of ``suites/``, in a directory of its own.

    Raises:
        RuntimeError: it failed; its output is the message.
    """
    options = ("-q", "-x", "-p", "no:cacheprovider", "-c", os.devnull, f"--rootdir={SUITES}")
    # Without bytecode every start of a process is slower, for reasons of nobody's tests.
    inherited = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryDirectory() as directory:
        before, begin = _cpu_of_children(), time.perf_counter()
        finished = subprocess.run(
            [*launcher, "-m", "pytest", str(SUITES / f"{suite}.py"), *options, *arguments],
            cwd=directory,
            env={**inherited, **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
        )
        wall, cpu = time.perf_counter() - begin, _cpu_of_children() - before
    if finished.returncode != 0:
        raise RuntimeError(f"{suite}, {' '.join(launcher)}:\n{finished.stdout}\n{finished.stderr}")
    return Spent(wall, cpu)


def _cpu_of_children() -> float:
    # Not os.times: its unit is 10 ms, what the plugin costs where there is no ddp test.
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
