"""How long a hang takes to become a verdict: ``python -m benchmarks verdicts``.

From the last step of any rank to the first failed report, or to the end of the command
where nothing failed before. The alternatives wait for the timeout of their process group,
which is set to 30 s for them; here it stays at its default of 30 minutes. The start of a
command and of its ranks does not count.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import SUITES

_DEFAULT = 1800
"""Seconds that a process group has by torch's own choice."""
_TIMEOUT = 30
_START = 120
"""Seconds that a command may take beside the others' timeout, on a busy machine."""
_TORCHRUN = (str(Path(sys.executable).parent / "torchrun"), "--standalone", "--nproc-per-node=2")
_DETAIL = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
CASES = (
    *("all_reduce_against_barrier", "unlike_sizes", "unlike_dtypes", "one_returns_early"),
    *("one_raises_early", "one_dies_early", "three_against_two", "mismatch_in_subgroup"),
    *("backward_on_one_rank", "state_dict_on_one_rank", "receive_without_send"),
    "crossed_subgroups",
)


@dataclass(frozen=True, slots=True)
class Harness:
    """One way to run the cases."""

    name: str
    suite: str
    launcher: tuple[str, ...] = (sys.executable,)
    environment: tuple[tuple[str, str], ...] = ()
    options: tuple[str, ...] = ("-p", "no:ddp")


OURS = Harness("pytest-ddp", "verdict_ddp", options=())
OTHERS = (
    Harness("MultiProcessTestCase", "verdict_multi_process"),
    Harness("torchrun -m pytest", "verdict_torchrun", _TORCHRUN),
    Harness("the same, DEBUG=DETAIL", "verdict_torchrun", _TORCHRUN, tuple(_DETAIL.items())),
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a harness said of a case, and when."""

    failed: bool
    seconds: float
    """Seconds since the last step of any rank; NaN if none came so far, infinite if it was waited
    for in vain."""

    def __str__(self) -> str:
        if math.isnan(self.seconds):
            return "failed at the start"
        if math.isinf(self.seconds):
            return "none"
        return f"{self.seconds:.2f} s" if self.failed else "passed"


def main(arguments: Sequence[str] = ()) -> None:
    """Measure and print a markdown table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks verdicts", description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="runs of each case under pytest-ddp")
    parser.add_argument("--timeout", type=int, default=_TIMEOUT, help="seconds, for the others")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--quick", action="store_true", help="pytest-ddp alone")
    given = parser.parse_args(arguments)
    others = () if given.quick else OTHERS
    names = [harness.name for harness in (OURS, *others)]
    print(f"| | {' | '.join(names)} |\n|{' --- |' * (len(names) + 1)}")
    medians = []
    for case in given.cases:
        own = [verdict(OURS, case, given.timeout) for _ in range(given.repeats)]
        medians += [middle(own).seconds] if middle(own).failed else []
        told = [middle(own), *(verdict(harness, case, given.timeout) for harness in others)]
        print(f"| {case.replace('_', ' ')} | {' | '.join(map(str, told))} |", flush=True)
    if medians:
        print(
            f"\nmedian of pytest-ddp over the cases that fail: {statistics.median(medians):.2f} s"
        )


def middle(verdicts: Sequence[Verdict]) -> Verdict:
    """The median, or the one that passed if any did."""
    ordered = sorted(verdicts, key=lambda one: (one.failed, one.seconds))
    return ordered[len(ordered) // 2] if ordered[0].failed else ordered[0]


def verdict(harness: Harness, case: str, timeout: int) -> Verdict:
    """Run one case.

    Raises:
        RuntimeError: the command failed before any test; the output is the message.
    """
    with tempfile.TemporaryDirectory() as directory:
        results = Path(directory, "results")
        code, ended, output = _run(harness, case, timeout, directory, results)
        records = list(_records(results))
    if not records:
        raise RuntimeError(f"{harness.name}, {case}:\n{output}")
    moves = [record["at"] for record in records if record["kind"] == "moved"]
    if not moves:
        return Verdict(True, math.nan)
    failures = (r["at"] for r in records if r["kind"] == "report" and r["outcome"] == "failed")
    first = next(failures, None)
    if first is None:
        return Verdict(code != 0, math.inf if code is None else ended - max(moves))
    return Verdict(True, first - max(moves))


def _run(
    harness: Harness, case: str, timeout: int, directory: str, results: Path
) -> tuple[int | None, float, str]:
    """The command's exit code, None if it had to be ended; when it ended; what it printed."""
    group_timeout = _DEFAULT if harness is OURS else timeout
    options = ("-q", "-p", "no:cacheprovider", "-p", "verdict_clock", "-c", os.devnull)
    suite = SUITES / f"{harness.suite}.py"
    command = [*harness.launcher, "-m", "pytest", str(suite), *options, *harness.options]
    with tempfile.TemporaryFile("w+") as output:
        # A rank that outlives its launcher would keep a pipe open for ever.
        process = subprocess.Popen(
            [*command, f"--rootdir={SUITES}", "-k", case],
            cwd=directory,
            env=os.environ
            | {
                "PYTHONPATH": str(SUITES),
                "BENCHMARK_TIMEOUT": str(group_timeout),
                "BENCHMARK_RESULTS": str(results),
                "OMP_NUM_THREADS": "1",
            }
            | dict(harness.environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(timeout + _START)
        except subprocess.TimeoutExpired:
            code = None
        ended = time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        output.seek(0)
        return code, ended, output.read()


def _records(results: Path) -> Iterator[dict[str, Any]]:
    if results.exists():
        for line in results.read_text().splitlines():
            yield json.loads(line)
