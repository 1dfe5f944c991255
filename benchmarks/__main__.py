"""Print what a distributed test costs, beside the alternatives: ``python -m benchmarks``.

``memory`` prints what a shared cache costs instead. ``--quick`` leaves out the repeats and
the slow alternatives. Times depend on the machine and on what else it does; the ratios, all
of one run, are what to read.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks import memory
from benchmarks.measure import Candidate, Cost, cost

_NO_DDP = ("-p", "no:ddp")
_TORCHRUN = (str(Path(sys.executable).parent / "torchrun"), "--standalone")

PLAIN = Candidate("pytest that imports torch once", "plain", (10, 210), _NO_DDP)
OURS = Candidate("pytest-ddp", "ddp", (10, 210))
ISOLATED = Candidate("pytest-ddp --ddp-isolate", "ddp", (2, 22), ("--ddp-isolate",))
OTHERS = (
    Candidate("torchrun -m pytest", "under_torchrun", (10, 210), _NO_DDP, _TORCHRUN),
    Candidate("MultiProcContinuousTest", "multi_proc_continuous_test", (10, 210), _NO_DDP),
    Candidate("mp.spawn helper", "mp_spawn", (1, 3), _NO_DDP),
    Candidate("MultiProcessTestCase", "multi_process_test_case", (1, 3), _NO_DDP),
)
SIZES = tuple(
    Candidate(f"pytest-ddp, {size} ranks", "ddp", (10, 110), (), (), size) for size in (2, 4, 8, 16)
)
WITHOUT = (
    Candidate("suite without ddp tests, plugin off", "without_torch", (10, 20), _NO_DDP),
    Candidate("suite without ddp tests, plugin on", "without_torch", (10, 20)),
)


def main() -> None:
    """Measure and print the tables."""
    if sys.argv[1:2] == ["memory"]:
        memory.main(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one run each, fast ones only")
    quick = parser.parse_args().quick
    repeats = 1 if quick else 3
    print(f"{os.cpu_count()} cores, 4 ranks, 1-element all_reduce; {repeats} runs of each\n")
    ours = cost(OURS, repeats)
    print(_row("", "start", "", "one more test", ""))
    plain = cost(PLAIN, repeats)
    for name, measured in _comparison(ours, plain, repeats, quick):
        print(_costs(name, measured, plain, ours))
    print("\nratios: start to pytest with torch, one more test to pytest-ddp\n")
    for candidate in SIZES[:2] if quick else SIZES:
        print(_costs(candidate.name, cost(candidate, repeats), plain, ours))
    off, on = (cost(candidate, 2 * repeats + 3).start for candidate in WITHOUT)
    print(f"\ncost of the plugin to a suite without ddp tests: {(on - off) * 1e3:.0f} ms")


def _comparison(ours: Cost, plain: Cost, repeats: int, quick: bool) -> Iterator[tuple[str, Cost]]:
    yield PLAIN.name, plain
    yield OURS.name, ours
    yield ISOLATED.name, cost(ISOLATED, repeats)
    for candidate in OTHERS[:1] if quick else OTHERS:
        yield candidate.name, cost(candidate, 1)


def _costs(name: str, measured: Cost, plain: Cost, ours: Cost) -> str:
    return _row(
        name,
        f"{measured.start:.2f} s",
        f"x {measured.start / plain.start:.2f}",
        f"{measured.test * 1e3:.1f} ms",
        f"x {measured.test / ours.test:.2f}",
    )


def _row(name: str, start: str, start_ratio: str, test: str, test_ratio: str) -> str:
    return f"{name:<36}{start:>9}{start_ratio:>9}{test:>15}{test_ratio:>9}"


if __name__ == "__main__":
    main()
