"""What ``worlds`` cost: ``python -m benchmarks worlds``.

Five worlds beside five tests with ``world_size`` and the same bodies, in turns in one session, on
the clock; and the processor time of the reference's further runs beside that of its first one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import run

_MODELS = {
    "small": "perceptron of 678 parameters",
    "transformer": "transformer of 206,980 parameters",
}
_RUNS = 5
"""The runs of a reference: the first, a plain one, and three with rounding."""
Noted = list[tuple[str, float]]


def main(arguments: Sequence[str] = ()) -> None:
    """Measure and print markdown tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks worlds", description=__doc__)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="three turns")
    given = parser.parse_args(arguments)
    turns = 3 if given.quick else given.turns
    with tempfile.TemporaryDirectory() as directory:
        results = Path(directory, "results")
        variables = {"BENCHMARK_COUNT": str(turns), "BENCHMARK_RESULTS": str(results)}
        run("worlds", environment={**variables, "OMP_NUM_THREADS": "1"})
        noted = [json.loads(line) for line in results.read_text().splitlines()]
    print(f"Medians over {turns} turns; three steps each.\n")
    print("\n".join(table(noted)))


@dataclass(frozen=True, slots=True)
class Turn:
    """Seconds of five worlds, and of five tests."""

    worlds: float
    sizes: float


@dataclass(frozen=True, slots=True)
class Reference:
    """Processor seconds of one that is measured."""

    first: float
    plain: float
    """Seconds of the second run."""
    rounding: float
    """Seconds of three with rounding."""


def table(noted: Noted) -> Iterator[str]:
    """The lines of the table."""
    yield "| | five tests | five worlds | ratio | plain run | three with rounding |"
    yield "|---|--:|--:|--:|--:|--:|"
    for model, name in _MODELS.items():
        own = [(what.split()[1], value) for what, value in noted if what.split()[0] == model]
        turns, references = list(_turns(own)), list(_references(own))
        cells = [
            f"{statistics.median(turn.sizes for turn in turns) * 1e3:.0f} ms",
            f"{statistics.median(turn.worlds for turn in turns) * 1e3:.0f} ms",
            f"{statistics.median(turn.worlds / turn.sizes for turn in turns):.2f}",
            f"x {statistics.median(one.plain / one.first for one in references):.1f}",
            f"x {statistics.median(one.rounding / one.first for one in references):.1f}",
        ]
        yield f"| {name} | {' | '.join(cells)} |"


def _turns(noted: Noted) -> Iterator[Turn]:
    spent: dict[str, float] = {}
    before = 0.0
    for what, at in noted:
        if what in ("worlds", "sizes"):
            spent[what] = at - before
        if what != "reference":
            before = at
        if what == "end":
            yield Turn(**spent)


def _references(noted: Noted) -> Iterator[Reference]:
    spent = [seconds for what, seconds in noted if what == "reference"]
    for start in range(0, len(spent), _RUNS):
        first, plain, *rounding = spent[start : start + _RUNS]
        yield Reference(first, plain, sum(rounding))
