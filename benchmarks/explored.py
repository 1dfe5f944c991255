"""What recording and holding cost: ``python -m benchmarks explored``.

A training of two ranks with checkpoints runs without recording, recorded, and with a thread held,
all in one session. The times are those of whole runs, as the pytest process sees them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import SUITES, run

_RUNS = 9
"""The number of runs of each test, recorded ones included."""


def main(arguments: Sequence[str] = ()) -> None:
    """Measure and print a markdown table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks explored", description=__doc__)
    parser.add_argument("--tests", type=int, default=10, help="how many tests are explored")
    parser.add_argument("--quick", action="store_true", help="two tests")
    given = parser.parse_args(arguments)
    tests = 2 if given.quick else given.tests
    with tempfile.TemporaryDirectory() as directory:
        results = Path(directory, "results")
        environment = {
            "BENCHMARK_COUNT": str(tests),
            "BENCHMARK_WORLD_SIZE": "2",
            "BENCHMARK_RESULTS": str(results),
            "PYTHONPATH": str(SUITES),
        }
        run("explored", ("-p", "explored", f"--ddp-explore={_RUNS}"), environment)
        print("\n".join(table(json.loads(results.read_text()))))


def table(runs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Medians of each kind of run, and what holds took.

    Args:
        runs: what the suite has written: ``kind``, ``seconds``, and of a held run ``hold``, its
            seconds, and for each of its holds ``late``, the seconds that it ended after the last
            event of the other threads, None if a bound ended it, and ``how`` it ended.
    """
    ordinary = _median(runs, "ordinary")
    yield "| run | number | median | beside an ordinary one |"
    yield "| --- | ---: | ---: | ---: |"
    for kind, name in (
        ("ordinary", "without recording"),
        ("recorded", "recorded"),
        ("held", "with a hold, less its time"),
    ):
        count = sum(run["kind"] == kind for run in runs)
        median = _median(runs, kind)
        yield f"| {name} | {count} | {1e3 * median:.0f} ms | {median / ordinary:.2f} |"
    ends = [how for run in runs for how in run.get("how", ())]
    late = [1e3 * seconds for run in runs for seconds in run.get("late", ()) if seconds is not None]
    yield ""
    yield (
        f"Of {len(ends)} holds a bound ended {ends.count('EXPIRED')}. The others ended "
        f"{statistics.median(late):.0f} ms after the last event of the other threads (median), at "
        f"most {max(late):.0f} ms."
    )


def _median(runs: Sequence[Mapping[str, Any]], kind: str) -> float:
    seconds: list[float] = [
        run["seconds"] - run.get("hold", 0.0) for run in runs if run["kind"] == kind
    ]
    return statistics.median(seconds)
