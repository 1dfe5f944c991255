"""How races are found, and what is said of legal programs: a table for the docs."""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from fidelity.races.adopted import Adopted
from fidelity.races.exploring import RUNS, Exploration, explore, replays
from fidelity.races.records import Program
from fidelity.races.rivals import WAYS, Attempt, attempt, points


@dataclass(frozen=True, slots=True)
class Effort:
    """How often things are repeated; each is 0 or more."""

    sessions: int = 3
    """Sessions that explore; the last of several is beside busy processes."""
    replays: int = 5
    """Replays of each find with pytest's cache, the last two beside busy processes; and one without
    it."""


@dataclass(slots=True)
class Row:
    """What was seen of one race."""

    program: Program
    explored: list[Exploration]
    points: int = 0
    replayed: list[bool] = field(default_factory=list)
    attempts: dict[str, Attempt] = field(default_factory=dict)

    @property
    def is_right(self) -> bool:
        """Whether every session found the race, and every replay failed."""
        return all(one.is_found for one in self.explored) and all(self.replayed)


def row(race: Program, effort: Effort) -> Row:
    """Explore a race, replay it, and try the other ways.

    Raises:
        RuntimeError: a session has not come to its end.
    """
    with tempfile.TemporaryDirectory() as folder:
        made = Row(race, _explored([race], effort, Path(folder)), points(race))
        found = next((number for number, one in enumerate(made.explored) if one.is_found), None)
        if found is not None:
            schedule, cache = made.explored[found].replay, Path(folder) / str(found)
            made.replayed = list(_replayed(race, schedule, cache, effort))
        for way in WAYS:
            made.attempts[way] = attempt(race, way, made.explored[0].seconds)
        return made


def explorations(legal: Sequence[Program], effort: Effort) -> list[Exploration]:
    """Explore all legal programs, in one session of each kind.

    Raises:
        RuntimeError: a session has not come to its end.
    """
    with tempfile.TemporaryDirectory() as folder:
        return _explored(legal, effort, Path(folder))


def accused(explored: Sequence[Exploration]) -> list[str]:
    """The legal programs that failed, or did not run, in a session."""
    right = ("passed", "skipped")
    outcomes = [pair for one in explored for pair in one.outcomes.items()]
    return sorted({name for name, outcome in outcomes if outcome not in right})


def _explored(programs: Sequence[Program], effort: Effort, folder: Path) -> list[Exploration]:
    """Sessions with a cache each, of which the last of several is beside busy processes."""
    explored = []
    for number in range(effort.sessions):
        with busy(1 < effort.sessions == number + 1):
            explored.append(explore(programs, folder / str(number)))
    return explored


def _replayed(program: Program, schedule: str, cache: Path, effort: Effort) -> Iterator[bool]:
    for number in range(effort.replays):
        with busy(number >= effort.replays - 2):
            yield replays(program, schedule, cache)
    if effort.replays:
        yield replays(program, schedule, None)


@contextmanager
def busy(is_busy: bool) -> Iterator[None]:
    """Run beside a busy process for each core."""
    count = (os.cpu_count() or 1) if is_busy else 0
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def page(races: Sequence[Row], legal: Sequence[Exploration], torchs: Adopted | None = None) -> str:
    """The table of races, what was said of legal programs and of torch's own tests, and how holds
    ended."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "pytest"))
    lines = [f"{datetime.date.today()}, {versions}, {os.cpu_count()} cores.", ""]
    if races:
        lines += [
            f"| race | ranks | points | found by exploring, runs of {RUNS} | seconds "
            f"| replayed | {' | '.join(WAYS)} |",
            "|---|--:|--:|---|--:|--:|" + "---|" * len(WAYS),
            *map(line, races),
            "",
            *_sums(races),
            "",
        ]
    if legal:
        names = ", ".join(_words(name) for name in accused(legal)) or "none"
        undecided = sum(one.undecided for one in legal)
        seconds = ", ".join(f"{one.seconds:.0f}" for one in legal)
        sessions = "session" if len(legal) == 1 else "sessions"
        lines += [
            f"Of {len(legal[0].outcomes)} legal programs in {len(legal)} {sessions} ({seconds} s), "
            f"accused: {names}; undecided: {undecided}.",
            "",
        ]
    if torchs is not None:
        lines += [str(torchs), ""]
    every = [*(one for each in races for one in each.explored), *legal]
    bounded, holds = sum(one.bounded for one in every), sum(one.holds for one in every)
    lines += [f"{bounded} of {holds} holds ended by time.", ""]
    return "\n".join(lines)


def _words(name: str) -> str:
    return name.removeprefix("test_").replace("_", " ")


def line(one: Row) -> str:
    """A race's line of the table."""
    name = _words(one.program.name)
    if one.program.source.startswith("https://"):
        name = f"[{name}]({one.program.source.partition(',')[0]})"
    found = ", ".join(str(each.schedule) if each.is_found else "none" for each in one.explored)
    seconds = ", ".join(f"{each.seconds:.0f}" for each in one.explored)
    replayed = f"{sum(one.replayed)} of {len(one.replayed)}"
    attempts = " | ".join(str(one.attempts[way]) for way in WAYS)
    cells = f"{one.program.ranks} | {one.points} | {found} | {seconds} | {replayed} | {attempts}"
    return f"| {name} | {cells} |"


def _sums(races: Sequence[Row]) -> list[str]:
    many = [one for one in races if one.program.has_many_points]
    return [_sum("races", races), *([_sum("races among many points", many)] if many else [])]


def _sum(what: str, races: Sequence[Row]) -> str:
    explored = sum(one.explored[0].is_found for one in races)
    ways = [f"{way} {sum(one.attempts[way].is_found for one in races)}" for way in WAYS]
    return f"Of {len(races)} {what} in equal time: explored {explored}, {', '.join(ways)}."
