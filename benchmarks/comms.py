"""What an open block of ``ddp.comms`` costs: ``python -m benchmarks comms``.

The time that an asynchronous all_reduce takes the thread that calls it, on one rank, with a block
open and without, in turns in the same process. Without a block nothing is installed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measure import run


def main(arguments: Sequence[str] = ()) -> None:
    """Measure and print a markdown table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks comms", description=__doc__)
    parser.add_argument("--calls", type=int, default=10_000, help="all_reduces of each kind")
    parser.add_argument("--quick", action="store_true", help="a thousand of each")
    given = parser.parse_args(arguments)
    calls = 1000 if given.quick else given.calls
    with tempfile.TemporaryDirectory() as directory:
        results = Path(directory, "results")
        run("comms", environment={"BENCHMARK_COUNT": str(calls), "BENCHMARK_RESULTS": str(results)})
        found = json.loads(results.read_text())
    medians = {name: statistics.median(times) / 1e3 for name, times in found.items()}
    print(f"Medians over {calls} calls of each kind.\n")
    print("| | without | with | difference |")
    print("| --- | ---: | ---: | ---: |")
    difference = medians["with"] - medians["without"]
    row = (medians["without"], medians["with"], difference)
    print("| all_reduce of 4 elements, 1 rank | " + " | ".join(f"{n:.1f} µs" for n in row) + " |")
    print(f"| to open a block | | | {medians['opened'] / 1e3:.1f} ms |")
