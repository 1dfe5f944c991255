"""What a test that calls ``mp.spawn`` costs as it is, and with its processes served.

The same file twice, the second time with ``--ddp-adopt=spawn``: forks of a process that has
imported torch, in the place of interpreters that do so.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from benchmarks.measure import Cost, costs
from benchmarks.sessions import SERVED, SPAWN


def main(arguments: Sequence[str] = ()) -> None:
    """Measure in turns and print a markdown table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks spawns", description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", help="numbers of processes")
    parser.add_argument("--repeats", type=int, default=3, help="pairs of sessions of each")
    parser.add_argument("--quick", action="store_true", help="one pair of each; 2 processes")
    given = parser.parse_args(arguments)
    sizes = given.sizes or ((2,) if given.quick else (2, 4, 8))
    repeats = 1 if given.quick else given.repeats
    found = {size: costs((SPAWN.on(size), SERVED.on(size)), repeats) for size in sizes}
    print("\n".join(_table(found, repeats)))


def _table(found: dict[int, list[Cost]], repeats: int) -> Iterator[str]:
    yield f"| one more test, median of {repeats} | `mp.spawn` | `--ddp-adopt=spawn` | ratio |"
    yield "|---|--:|--:|--:|"
    for size, (plain, served) in found.items():
        for what, theirs, ours in (
            ("time", plain.test, served.test),
            ("CPU of all processes", plain.cpu, served.cpu),
        ):
            times = f"{theirs * 1e3:.0f} ms | {ours * 1e3:.0f} ms"
            yield f"| {size} processes, {what} | {times} | {ours / theirs:.3f} |"
