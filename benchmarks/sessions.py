"""What a distributed test costs, beside the alternatives, and the plugin where there is none."""

from __future__ import annotations

import argparse
import math
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks.measure import Candidate, Cost, costs, session

_NO_DDP = ("-p", "no:ddp")
_TORCHRUN = (
    str(Path(sys.executable).parent / "torchrun"),
    "--standalone",
    "--nproc-per-node={world_size}",
)
_SLOW = (1, 2)
"""Numbers of tests where each starts its ranks afresh and imports torch in them."""

_MANY = (10, 1010)
"""Numbers of tests where a start of many seconds, never the same, would hide a test's cost."""

PLAIN = Candidate("pytest that imports torch once, no ranks", "plain", (10, 210), _NO_DDP)
OURS = Candidate("pytest-ddp", "ddp", (10, 510))
TORCHRUN = Candidate("`torchrun -m pytest`", "under_torchrun", _MANY, _NO_DDP, _TORCHRUN)
TWO_NODES = Candidate(
    "two machines",
    "ddp",
    OURS.counts,
    ("--ddp-machines=torchrun",),
    (sys.executable, str(Path(__file__).with_name("twonodes.py"))),
)
SPAWN = Candidate("`mp.spawn` helper", "mp_spawn", _SLOW, _NO_DDP)
SERVED = Candidate("the same, `--ddp-adopt=spawn`", "mp_spawn", (2, 22), ("--ddp-adopt=spawn",))
OTHERS = (
    Candidate("pytest-ddp, every test isolated", "ddp", (2, 12), ("--ddp-isolate",)),
    TORCHRUN,
    Candidate("`MultiProcContinuousTest`", "multi_proc_continuous_test", _MANY, _NO_DDP),
    SPAWN,
    SERVED,
    Candidate("`MultiProcessTestCase`", "multi_process_test_case", _SLOW, _NO_DDP),
)
WITHOUT = (
    Candidate("suite without ddp tests, plugin off", "without_torch", (10, 20), _NO_DDP),
    Candidate("suite without ddp tests, plugin on", "without_torch", (10, 20)),
)

ADOPTING = Candidate(
    "suite without ddp tests, adopting", "without_torch", (10, 20), ("--ddp-adopt=all",)
)


def main(arguments: Sequence[str] = ()) -> None:
    """Measure the same test under each candidate and print markdown tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks costs", description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", help="numbers of ranks")
    parser.add_argument("--quick", action="store_true", help="one run of each; 2 and 4 ranks")
    given = parser.parse_args(arguments)
    sizes = given.sizes or ((2, 4) if given.quick else (2, 4, 8, 16))
    repeats = 1 if given.quick else 3
    (plain,) = costs((PLAIN,), repeats)
    rows = {OURS.name: costs([OURS.on(size) for size in sizes], repeats)}
    for other in OTHERS:
        rows[other.name] = [_cost_of(other.on(size)) for size in sizes]
    print("\n".join(_tables(rows, plain, sizes)))


def _cost_of(other: Candidate) -> Cost:
    """NaN of one that fails: the numbers of an hour are not to be lost with it."""
    try:
        (cost,) = costs((other,), 1)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        print(f"{other.name}, {other.world_size} ranks: {error}", file=sys.stderr)
        return Cost(math.nan, math.nan, math.nan)
    return cost


def _tables(rows: dict[str, list[Cost]], plain: Cost, sizes: Sequence[int]) -> Iterator[str]:
    yield from _table("one more test", rows, sizes, lambda cost: cost.test, "ms")
    yield from _table("CPU of one more test", rows, sizes, lambda cost: cost.cpu, "ms")
    starts = rows | {PLAIN.name: [plain] * len(sizes)}
    yield from _table("a session's start", starts, sizes, lambda cost: cost.start, "s")


def _table(
    title: str,
    rows: dict[str, list[Cost]],
    sizes: Sequence[int],
    value: Callable[[Cost], float],
    unit: str,
) -> Iterator[str]:
    yield f"| {title} | {' | '.join(f'{size} ranks' for size in sizes)} |"
    yield f"|---{'|--:' * len(sizes)}|"
    for name, found in rows.items():
        cells = (
            _cell(value(cost), value(own), unit)
            for cost, own in zip(found, rows[OURS.name], strict=True)
        )
        yield f"| {name} | {' | '.join(cells)} |"
    yield ""


def _cell(seconds: float, own: float, unit: str) -> str:
    if math.isnan(seconds):
        return "failed"
    time = f"{seconds * 1e3:.1f} ms" if unit == "ms" else f"{seconds:.2f} s"
    ratio = seconds / own
    return time if ratio == 1 else f"{time}, x {ratio:{'.0f' if ratio >= 10 else '.2f'}}"


def unused(arguments: Sequence[str] = ()) -> None:
    """Measure what the plugin costs a session that has no ddp test, and print it.

    In processor time of neighbours, in turns: the difference is a hundredth of what a
    session takes, and on the clock it drowns in what else the machine does.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks unused", description=unused.__doc__)
    parser.add_argument("--quick", action="store_true", help="few sessions")
    turns = 4 if parser.parse_args(arguments).quick else 40
    off, on, adopting = _in_turns((*WITHOUT, ADOPTING), turns)
    print(
        f"A session without ddp tests takes {statistics.median(off) * 1e3:.0f} ms of CPU without "
        f"the plugin, and with it {_more(off, on)} (the middle half of {turns} pairs of "
        f"sessions); with --ddp-adopt=all, which finds nothing to adopt, {_more(on, adopting)} "
        f"than with the plugin alone."
    )


def _more(fewer: Sequence[float], more: Sequence[float]) -> str:
    differences = sorted(mine - bare for mine, bare in zip(more, fewer, strict=True))
    quarter = len(differences) // 4
    spread = f"{differences[quarter] * 1e3:.0f} to {differences[-1 - quarter] * 1e3:.0f}"
    return f"{statistics.median(differences) * 1e3:.0f} ms more [{spread}]"


def _in_turns(candidates: Sequence[Candidate], turns: int) -> list[list[float]]:
    """Processor seconds of sessions of each, turn by turn."""
    spent: dict[str, list[float]] = {candidate.name: [] for candidate in candidates}
    for number in range(turns):
        # Whoever comes later finds warmer caches, so each does in turn.
        for candidate in candidates if number % 2 else candidates[::-1]:
            spent[candidate.name].append(session(candidate, candidate.counts[0]).cpu)
    return list(spent.values())
