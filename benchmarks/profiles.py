"""Where the time of a warm test goes: the processor time of the controller and of a rank for it,
and the share that each package's own code has in it."""

from __future__ import annotations

import argparse
import json
import pstats
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.inside import FIRST, LAST
from benchmarks.measure import Candidate, session
from benchmarks.sessions import OURS

_PARTS = {
    "pytest_ddp/": "pytest-ddp",
    "_pytest/": "pytest",
    "pluggy/": "pytest",
    "torch/": "torch",
    "benchmarks/": "the test",
    "suites/": "the test",
}
_SHOWN = 12
"""Functions of a profile."""
_OTHERS = "other packages and the standard library"

Function = tuple[str, int, str]
"""File, line and name, as :mod:`pstats` has them; builtins have ``~`` for a file."""


@dataclass(frozen=True, slots=True)
class Profile:
    """The profile of one kind of process."""

    cpu: float
    """Seconds for one test, without the profiler."""
    parts: dict[str, float]
    """Processor time of each part's own code, as the profiler has it; most first."""
    functions: dict[str, float]
    """Processor time of each function."""


def main(arguments: Sequence[str] = ()) -> None:
    """Measure and print a markdown table for each kind of process."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks profiles", description=__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--functions", type=int, default=_SHOWN, help="the dearest ones, to show")
    parser.add_argument("--quick", action="store_true", help="as without it")
    given = parser.parse_args(arguments)
    for kind, profile in profiles(OURS.on(given.ranks)).items():
        print("\n".join(_table(f"{kind}, {given.ranks} ranks", profile, given.functions)))


def _table(kind: str, profile: Profile, functions: int) -> Iterator[str]:
    total = sum(profile.parts.values())
    yield f"| CPU of the {kind}, for one test: {profile.cpu * 1e3:.2f} ms | share |"
    yield "|---|--:|"
    for part, seconds in profile.parts.items():
        yield f"| {part} | {seconds / total:.0%} |"
    for function, seconds in list(profile.functions.items())[:functions]:
        yield f"| ... `{function}` | {seconds / total:.1%} |"
    yield ""


def profiles(candidate: Candidate) -> dict[str, Profile]:
    """Profiles of the "controller" and of a "rank".

    cProfile makes calls of Python functions seem dearer than they are, so that its shares
    say where to look and the processor time says how much there is.
    """
    cpu = {kind: _cpu(files) for kind, files in measured(candidate, "cpu").items()}
    return {
        kind: _profile(cpu[kind], files[0]) for kind, files in measured(candidate, "calls").items()
    }


def measured(candidate: Candidate, what: str) -> dict[str, list[Any]]:
    """What each process of a session with pytest in it took for a warm test, by its kind.

    Args:
        candidate: torchrun's processes count as controllers.
        what: ``cpu`` for seconds, ``calls`` for profiles.
    """
    with tempfile.TemporaryDirectory() as folder:
        variables = {
            "BENCHMARK_FOLDER": folder,
            "BENCHMARK_PROFILE": what,
            "PYTHONPATH": str(Path(__file__).parents[1]),
        }
        plugin = ("-p", "benchmarks.inside")
        session(
            replace(
                candidate,
                arguments=(*candidate.arguments, *plugin),
                environment=variables,
            ),
            LAST + 10,
        )
        return {
            kind: [_read(file, what) for file in sorted(Path(folder).glob(f"{kind}-*.json"))]
            for kind in ("controller", "rank")
        }


def _read(file: Path, what: str) -> Any:
    if what == "cpu":
        return json.loads(file.read_text())
    return pstats.Stats(str(file.with_suffix(".prof")))


def _cpu(seconds: list[float]) -> float:
    return statistics.mean(seconds)


def _profile(cpu: float, stats: Any) -> Profile:
    parts: dict[str, float] = defaultdict(float)
    functions: dict[str, float] = defaultdict(float)
    for function, seconds in _own_times(stats):
        part = _part(function)
        parts[part] += seconds
        functions[f"{_name(function)} ({part})"] += seconds
    return Profile(cpu, _descending(parts), _descending(functions))


def _descending(times: dict[str, float]) -> dict[str, float]:
    return dict(sorted(times.items(), key=lambda item: -item[1]))


def _own_times(stats: Any) -> Iterator[tuple[Function, float]]:
    """Seconds for one test in each function; a builtin's are its callers', but for torch's."""
    tests = LAST - FIRST
    for function, (_, _, own, _, callers) in stats.stats.items():
        if function[0] != "~" or "torch." in function[2]:
            yield function, own / tests
            continue
        for caller, (_, _, own_from_here, _) in callers.items():
            yield caller, own_from_here / tests


def _part(function: Function) -> str:
    file = function[0]
    if file == "~":
        return "torch"
    return next((part for folder, part in _PARTS.items() if folder in file), _OTHERS)


def _name(function: Function) -> str:
    if function[0] == "~":
        return function[2].rstrip(">").rpartition(" ")[2]
    return f"{Path(function[0]).stem}.{function[2]}"
