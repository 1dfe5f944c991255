"""Print what a distributed test costs, beside the alternatives: ``python -m benchmarks``.

``memory`` prints what a shared cache costs instead. ``--quick`` leaves out the repeats and
the slow alternatives. Times depend on the machine and on what else it does; the ratios, all
of one run, are what to read.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

from benchmarks import memory, overhead, verdicts
from benchmarks.measure import Candidate, Cost, costs, session
from benchmarks.profiles import Profile, profiles

_NO_DDP = ("-p", "no:ddp")
_TORCHRUN = (str(Path(sys.executable).parent / "torchrun"), "--standalone")
_DOCUMENT = Path(__file__).parents[1] / "docs" / "benchmarks.md"
_BEGIN, _END = "<!-- numbers: python -m benchmarks --write -->\n", "<!-- end of numbers -->\n"
_SHOWN = 8
"""Functions of a profile."""

PLAIN = Candidate("pytest that imports torch once", "plain", (10, 210), _NO_DDP)
OURS = Candidate("pytest-ddp", "ddp", (10, 210))
ISOLATED = Candidate("pytest-ddp, every test isolated", "ddp", (2, 22), ("--ddp-isolate",))
OTHERS = (
    Candidate("`torchrun -m pytest`", "under_torchrun", (10, 210), _NO_DDP, _TORCHRUN),
    Candidate("`MultiProcContinuousTest`", "multi_proc_continuous_test", (10, 210), _NO_DDP),
    Candidate("`mp.spawn` helper", "mp_spawn", (1, 2), _NO_DDP),
    Candidate("`MultiProcessTestCase`", "multi_process_test_case", (1, 2), _NO_DDP),
)
SIZES = tuple(Candidate(f"{size} ranks", "ddp", (10, 110), (), (), size) for size in (2, 4, 8, 16))
WITHOUT = (
    Candidate("suite without ddp tests, plugin off", "without_torch", (10, 20), _NO_DDP),
    Candidate("suite without ddp tests, plugin on", "without_torch", (10, 20)),
)


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one run each, fast ones only")
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md as well")
    asked = parser.parse_args()
    lines: list[str] = []
    for line in _report(asked.quick):
        print(line, flush=True)
        lines.append(line)
    if asked.write:
        _write("\n".join(lines))


def _write(numbers: str) -> None:
    before, _, rest = _DOCUMENT.read_text().partition(_BEGIN)
    after = rest.partition(_END)[2]
    _DOCUMENT.write_text(f"{before}{_BEGIN}\n{numbers}\n\n{_END}{after}")


def _report(quick: bool) -> Iterator[str]:
    repeats = 1 if quick else 3
    yield _machine(repeats)
    plain, ours = costs((PLAIN, OURS), repeats)
    row = _costs_row(plain, ours)
    yield ""
    yield from _header("4 ranks, 1-element all_reduce")
    yield row(PLAIN.name, plain)
    yield row(OURS.name, ours)
    for candidate in (ISOLATED, *(OTHERS[:1] if quick else OTHERS)):
        yield row(candidate.name, *costs((candidate,), 1))
    yield ""
    yield from _header("pytest-ddp by number of ranks")
    for candidate in SIZES[:2] if quick else SIZES:
        yield row(candidate.name, *costs((candidate,), repeats))
    yield ""
    yield _without_ddp_tests(2 if quick else 12)
    for kind, profile in profiles(OURS).items():
        yield from _profile(kind, profile)


def _machine(repeats: int) -> str:
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "pytest"))
    load = f"load {os.getloadavg()[0]:.1f} at the start"
    return (
        f"{datetime.date.today()}, {_processor()}, {os.cpu_count()} cores, {load}; "
        f"Linux {platform.release()}, Python {platform.python_version()}, {versions}; "
        f"{repeats} runs of each, of the alternatives one."
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _header(title: str) -> Sequence[str]:
    return (
        f"| {title} | start | to pytest with torch | one more test | to pytest-ddp | its CPU |",
        "|---|--:|--:|--:|--:|--:|",
    )


def _costs_row(plain: Cost, ours: Cost) -> Callable[[str, Cost], str]:
    def row(name: str, cost: Cost) -> str:
        start = f"{cost.start:.2f} s | x {cost.start / plain.start:.2f}"
        test = f"{cost.test * 1e3:.1f} ms | x {cost.test / ours.test:.2f}"
        return f"| {name} | {start} | {test} | {cost.cpu * 1e3:.1f} ms |"

    return row


def _without_ddp_tests(pairs: int) -> str:
    off, on = WITHOUT
    differences = sorted(session(on, 10).cpu - session(off, 10).cpu for _ in range(pairs))
    middle = statistics.median(differences) * 1e3
    spread = f"{differences[pairs // 4] * 1e3:.0f} to {differences[-1 - pairs // 4] * 1e3:.0f}"
    return (
        f"A session without ddp tests: the plugin costs it {middle:.0f} ms of CPU (the middle "
        f"half of {pairs} pairs of sessions: {spread} ms)."
    )


def _profile(kind: str, profile: Profile) -> Iterator[str]:
    total = sum(profile.parts.values())
    yield ""
    yield f"| CPU of the {kind} for one test: {profile.cpu * 1e3:.2f} ms | share |"
    yield "|---|--:|"
    for part, seconds in profile.parts.items():
        yield f"| {part} | {seconds / total:.0%} |"
    for function, seconds in list(profile.functions.items())[:_SHOWN]:
        yield f"| ... `{function}` | {seconds / total:.0%} |"


_OTHERS = {"memory": memory.main, "overhead": overhead.main, "verdicts": verdicts.main}

if __name__ == "__main__":
    other = _OTHERS.get(" ".join(sys.argv[1:2]))
    main() if other is None else other(sys.argv[2:])
