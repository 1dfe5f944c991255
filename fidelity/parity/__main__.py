"""Run wrong and right programs with worlds: ``python -m fidelity.parity [--write] [--seeds N]``.

Each program of ``programs/`` is a test as a user would write it. All run with a few seeds; then
those whose ratios are nearest to the limit with more of them, and right ones also with large
batches and two threads. Prints a table of the ratios, which ``--write`` puts into docs/parity.md,
and each program that is not judged as it should be; fails if there is one.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path

from fidelity.parity.running import Judgement, Size, judgements

DOCUMENT = Path(__file__).parents[2] / "docs" / "parity.md"
BEGIN, END = "<!-- python -m fidelity.parity --write -->\n", "<!-- end of the table -->\n"

FAULTS, BENIGN = "test_faults.py", "test_benign.py"
EXACTLY = {
    "bias_reduced_twice": {"gradients: down.bias"},
    "tied_weight_split": {"gradients: embedding.weight", "gradients: head.weight"},
    "norm_not_reduced": {"gradients: norm.weight", "gradients: norm.bias"},
    "experts_doubled": {
        f"gradients: experts.{number}.{name}" for number in range(4) for name in ("weight", "bias")
    },
}
"""Faults of some tensors alone, which are those that must be beyond the limit."""
ALWAYS = "relu_near_zero"
"""Is among the right programs that run with more seeds."""
_LOWEST, _HIGHEST = 3, 4
_LARGE = 8192

Row = tuple[str, Size, str]
"""A program, its size, and its dtype."""


def is_right(file: str, found: Judgement) -> bool:
    """Whether a world was judged as it should be: a reference, and a benign one, passes."""
    if file == BENIGN or found.world == "one":
        return found.outcome == "passed"
    wanted = EXACTLY.get(found.program, set(found.wrong))
    return found.outcome == "failed" and found.is_named and wanted == set(found.wrong)


def main(arguments: Sequence[str]) -> int:
    """Return 0 if all programs were judged as they should be."""
    parser = argparse.ArgumentParser(prog="python -m fidelity.parity", description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the table into docs/parity.md")
    parser.add_argument("--seeds", type=int, default=3, help="for all programs")
    parser.add_argument("--more-seeds", type=int, default=20, help="for those near the limit")
    given = parser.parse_args(arguments)
    few, many = given.seeds, given.more_seeds
    evidence = Evidence()
    for file in (FAULTS, BENIGN):
        evidence.take(file, Size(few))
    if many:
        low = evidence.nearest(FAULTS)[:_LOWEST]
        high = [name for name in evidence.nearest(BENIGN) if name != ALWAYS][: _HIGHEST - 1]
        evidence.take(FAULTS, Size(many), low)
        # One seed with large batches, whose runs in bfloat16 take many times as long.
        for size in (Size(many), Size(1, _LARGE), Size(1, _LARGE, threads=2)):
            evidence.take(BENIGN, size, [ALWAYS, *high])
    made = evidence.page()
    print(made)
    if given.write:
        write(made)
    return 1 if evidence.mistakes else 0


class Evidence:
    """What was found so far."""

    def __init__(self) -> None:
        self.mistakes = 0
        self._found: dict[str, dict[Row, list[Judgement]]] = {
            file: defaultdict(list) for file in (FAULTS, BENIGN)
        }
        self._began = time.monotonic()

    def take(self, file: str, size: Size, programs: Sequence[str] = ()) -> None:
        """Run programs of a file, all if none is given."""
        self.add(file, size, judgements([f"{file}::test_{p}" for p in programs] or [file], size))
        minutes = (time.monotonic() - self._began) / 60
        print(f"after {minutes:.1f} minutes:", file=sys.stderr)
        rows = [_row(file, *row) for row in self._found[file].items() if row[0][1] == size]
        print("\n".join(rows), file=sys.stderr, flush=True)

    def add(self, file: str, size: Size, judged: Iterable[Judgement]) -> None:
        """Take how programs were judged; print what is not as it should be."""
        for found in judged:
            if not is_right(file, found):
                self.mistakes += 1
                print(f"{file}, {size}:\n{found}\n{found.text}", file=sys.stderr, flush=True)
            if found.ratios or found.outcome != "passed":
                self._found[file][found.program, size, found.dtype].append(found)

    def nearest(self, file: str) -> list[str]:
        """The programs; first the one whose ratio is nearest to the limit."""
        is_fault = file == FAULTS
        ratios: dict[str, list[float]] = defaultdict(list)
        for (program, *_), found in self._found[file].items():
            ratios[program].extend(one.ratio for one in found)
        ends = {name: min(all_) if is_fault else max(all_) for name, all_ in ratios.items()}
        return sorted(ends, key=lambda name: ends[name], reverse=not is_fault)

    def page(self) -> str:
        """The tables."""
        versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "pytest"))
        return "\n".join(
            (
                f"{datetime.date.today()}, {versions}.",
                "",
                "| wrong program | dtype | samples, threads | worlds | red | lowest ratio "
                "| highest |",
                "|---|---|--:|--:|--:|--:|--:|",
                *(_row(FAULTS, row, found) for row, found in self._found[FAULTS].items()),
                "",
                "| right program | dtype | samples, threads | worlds | red | highest ratio "
                "| asked for more runs |",
                "|---|---|--:|--:|--:|--:|--:|",
                *(_row(BENIGN, row, found) for row, found in self._found[BENIGN].items()),
                "",
            )
        )


def _row(file: str, row: Row, found: list[Judgement]) -> str:
    program, size, dtype = row
    ratios = [one.ratio for one in found]
    red = sum(one.outcome != "passed" for one in found)
    cells = [program.replace("_", " "), dtype, f"{size.samples:,}, {size.threads}", len(found), red]
    if file == FAULTS:
        cells += [_short(min(ratios)), _short(max(ratios))]
    else:
        cells += [_short(max(ratios)), sum("more rounding" in one.ratios for one in found)]
    return f"| {' | '.join(map(str, cells))} |"


def _short(ratio: float) -> str:
    return f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.2g}"


def write(made: str) -> None:
    """Put the tables in the place of older ones."""
    before, _, rest = DOCUMENT.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    DOCUMENT.write_text(f"{before}{BEGIN}\n{made}\n{END}{after}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
