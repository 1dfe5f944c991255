"""What an open block of ``ddp.comms`` and ``portable=`` cost: ``python -m benchmarks comms``.

The time that an asynchronous all_reduce takes the thread that calls it, on one rank, with a block
open and without, and that of a step of DDP on its own thread, watched and not, in turns in the same
process. Without a block and without ``portable=`` nothing is installed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.measure import run


def main(arguments: Sequence[str] = ()) -> None:
    """Measure and print a markdown table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks comms", description=__doc__)
    parser.add_argument("--calls", type=int, default=10_000, help="all_reduces of each kind")
    parser.add_argument("--quick", action="store_true", help="a thousand of each")
    given = parser.parse_args(arguments)
    calls = 1000 if given.quick else given.calls
    medians, steps = _medians("comms", calls), _medians("portable", calls // 5)
    print(f"Medians over {calls} calls of each kind.\n")
    print("| | without | with | difference |")
    print("| --- | ---: | ---: | ---: |")
    print("| all_reduce of 4 elements, 1 rank: block of `ddp.comms`" + _row(medians))
    print(f"| to open a block | | | {medians['opened'] / 1e3:.1f} ms |")
    print("| DDP step, 2 layers of 64, 1 rank: `portable=`" + _row(steps))


def _medians(suite: str, calls: int) -> dict[str, float]:
    """Medians in microseconds."""
    with tempfile.TemporaryDirectory() as directory:
        results = Path(directory, "results")
        run(suite, environment={"BENCHMARK_COUNT": str(calls), "BENCHMARK_RESULTS": str(results)})
        found = json.loads(results.read_text())
    return {name: statistics.median(times) / 1e3 for name, times in found.items()}


def _row(medians: Mapping[str, float]) -> str:
    row = medians["without"], medians["with"], medians["with"] - medians["without"]
    return "".join(f" | {number:.1f} µs" for number in row) + " |"
