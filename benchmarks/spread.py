"""What a test costs whose ranks are on two machines, beside one machine: both are this one."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from benchmarks.measure import Cost, costs
from benchmarks.sessions import OURS, TWO_NODES

_CANDIDATES = (OURS, TWO_NODES)


def main(arguments: Sequence[str] = ()) -> None:
    """Measure in turns and print a markdown table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks spread", description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=(2, 4, 8), help="numbers of ranks")
    parser.add_argument("--repeats", type=int, default=5, help="pairs of sessions of each")
    parser.add_argument("--quick", action="store_true", help="one pair of each; 2 ranks")
    given = parser.parse_args(arguments)
    sizes, repeats = ((2,), 1) if given.quick else (given.sizes, given.repeats)
    found = {size: costs([one.on(size) for one in _CANDIDATES], repeats) for size in sizes}
    print("\n".join(table(found)))


def table(found: dict[int, list[Cost]]) -> Iterator[str]:
    """Rows of markdown, from the costs on one machine and on two by the number of ranks."""
    yield "| | one machine | two machines | ratio |"
    yield "|---|--:|--:|--:|"
    for size, (one, two) in found.items():
        yield _row(f"one more test, {size} ranks", one.test * 1e3, two.test * 1e3, "ms")
        yield _row(f"its CPU, {size} ranks", one.cpu * 1e3, two.cpu * 1e3, "ms")
        yield _row(f"a session's start, {size} ranks", one.start, two.start, "s")


def _row(name: str, one: float, two: float, unit: str) -> str:
    return f"| {name} | {one:.2f} {unit} | {two:.2f} {unit} | {two / one:.2f} |"
