"""What a warm test costs in processor time, beside ``torchrun -m pytest``: without the starts.

Sessions of two lengths (:mod:`benchmarks.measure`) differ by less than the starts of ranks vary
on a machine that does other work; each process that counts its own time from a test on does not.
``MultiProcContinuousTest`` has no pytest in its ranks that could count.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence

from benchmarks.profiles import measured
from benchmarks.sessions import OURS, TORCHRUN

_CANDIDATES = (OURS, TORCHRUN)


def main(arguments: Sequence[str] = ()) -> None:
    """Measure in turns and print a markdown table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks warm", description=__doc__)
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=(2, 4, 8, 16), help="numbers of ranks"
    )
    parser.add_argument("--repeats", type=int, default=5, help="sessions of each")
    parser.add_argument("--quick", action="store_true", help="one session of each; 2 ranks")
    given = parser.parse_args(arguments)
    sizes, repeats = ((2,), 1) if given.quick else (given.sizes, given.repeats)
    print("\n".join(_table({size: _in_turns(size, repeats) for size in sizes}, repeats)))


def _in_turns(size: int, repeats: int) -> dict[str, float]:
    """Median milliseconds of all processes together for one test, by the candidate's name."""
    spent: dict[str, list[float]] = {candidate.name: [] for candidate in _CANDIDATES}
    for _ in range(repeats):
        for candidate in _CANDIDATES:
            processes = measured(candidate.on(size), "cpu").values()
            spent[candidate.name].append(sum(map(sum, processes)) * 1e3)
    return {name: statistics.median(values) for name, values in spent.items()}


def _table(found: dict[int, dict[str, float]], repeats: int) -> Iterator[str]:
    ours, other = (candidate.name for candidate in _CANDIDATES)
    yield f"| CPU of a warm test, all processes, median of {repeats} | {ours} | {other} | ratio |"
    yield "|---|--:|--:|--:|"
    for size, by_name in found.items():
        mine, theirs = by_name[ours], by_name[other]
        yield f"| {size} ranks | {mine:.1f} ms | {theirs:.1f} ms | {mine / theirs:.2f} |"
