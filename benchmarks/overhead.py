"""What the plugin costs inside a rank: ``python -m benchmarks overhead``.

Each number is processor time, the median over many short blocks that were timed in turns,
with the rank's instruments (journal, digests for the comparison, phases) and without them,
in the same process. torch's flight recorder can only be chosen when a process begins; it is
compared between processes, which is less exact, and torch itself has it on by default.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import run

_LIMIT = 3000
_UNITS = {
    "call": "all_reduce of 1 element, 1 rank, one call",
    "step": "DDP step, 1.6 M parameters, 2 ranks, one step",
}


@dataclass(frozen=True, slots=True)
class Pairs:
    """Processor seconds for one unit with the instruments and without, block by block."""

    what: str
    recorder: bool
    pairs: tuple[tuple[float, float], ...]


def main(arguments: Sequence[str] = ()) -> None:
    """Measure and print a markdown table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks overhead", description=__doc__)
    parser.add_argument("--rounds", type=int, default=100, help="blocks of each process")
    parser.add_argument("--quick", action="store_true", help="three blocks of each")
    given = parser.parse_args(arguments)
    measured = measure(3 if given.quick else given.rounds)
    print(f"Medians over {len(measured)} ranks, in turns.\n")
    print("\n".join(table(measured)))


def measure(rounds: int) -> list[Pairs]:
    """Run the suite.

    Raises:
        RuntimeError: it failed; its output is the message.
    """
    with tempfile.TemporaryDirectory() as directory:
        results = Path(directory, "results")
        variables = {"BENCHMARK_COUNT": str(rounds), "BENCHMARK_RESULTS": str(results)}
        run("overhead", environment=variables, limit=_LIMIT)
        return [_read(line) for line in results.read_text().splitlines()]


def _read(line: str) -> Pairs:
    record = json.loads(line)
    pairs = tuple((float(mine), float(bare)) for mine, bare in record["pairs"])
    return Pairs(record["what"], record["recorder"], pairs)


def table(measured: Sequence[Pairs]) -> Iterable[str]:
    """The lines of the table."""
    yield "| | without | with | difference | ratio |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    for what, name in _UNITS.items():
        own = [pair for run in measured if run.what == what and run.recorder for pair in run.pairs]
        off = [
            pair for run in measured if run.what == what and not run.recorder for pair in run.pairs
        ]
        bare = statistics.median(without for _, without in own)
        # The machine's pace changes between blocks, but little between two neighbours.
        difference = statistics.median(mine - without for mine, without in own)
        yield _row(f"{name}: journal, comparison, phases", bare, difference)
        recorder_off = statistics.median(without for _, without in off)
        yield _row(f"{name}: flight recorder of torch", recorder_off, bare - recorder_off)


def _row(name: str, without: float, difference: float) -> str:
    cells = (_time(without), _time(without + difference), _time(difference))
    return f"| {name} | {' | '.join(cells)} | {1 + difference / without:.3f} |"


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if abs(seconds) >= 1e-3 else f"{seconds * 1e6:.1f} µs"
