"""How races are found, and what is said of legal programs: a table for the docs."""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from fidelity.races.exploring import RUNS, Exploration, explore, replays
from fidelity.races.records import Program
from fidelity.races.rivals import WAYS, Attempt, attempt, points


@dataclass(frozen=True, slots=True)
class Effort:
    """How often things are repeated; each is 0 or more."""

    sessions: int = 3
    """That explore; the last of several is beside busy processes."""
    replays: int = 5
    """Of each find with pytest's cache, the last two beside busy processes; and one without it."""


@dataclass(slots=True)
class Row:
    """What was seen of one program."""

    program: Program
    explored: list[Exploration]
    points: int = 0
    replayed: list[bool] = field(default_factory=list)
    attempts: dict[str, Attempt] = field(default_factory=dict)

    @property
    def is_right(self) -> bool:
        """Whether every session found the race and every replay failed, or accused nothing."""
        if not self.program.is_race:
            return all(one.outcome != "failed" for one in self.explored)
        return all(one.is_found for one in self.explored) and all(self.replayed)


def row(program: Program, effort: Effort) -> Row:
    """Explore a program, and if it is a race replay it and try the other ways.

    Raises:
        RuntimeError: a session has not come to its end.
    """
    with tempfile.TemporaryDirectory() as folder:
        explored = []
        for number in range(effort.sessions):
            with busy(1 < effort.sessions == number + 1):
                explored.append(explore(program, Path(folder) / str(number)))
        made = Row(program, explored)
        if not program.is_race:
            return made
        made.points = points(program)
        found = next((number for number, one in enumerate(explored) if one.is_found), None)
        if found is not None:
            made.replayed = list(
                _replayed(program, explored[found].replay, Path(folder) / str(found), effort)
            )
        for way in WAYS:
            made.attempts[way] = attempt(program, way, explored[0].seconds)
        return made


def _replayed(program: Program, schedule: str, cache: Path, effort: Effort) -> Iterator[bool]:
    for number in range(effort.replays):
        with busy(number >= effort.replays - 2):
            yield replays(program, schedule, cache)
    if effort.replays:
        yield replays(program, schedule, None)


@contextmanager
def busy(is_busy: bool) -> Iterator[None]:
    """Beside a busy process for each core."""
    count = (os.cpu_count() or 1) if is_busy else 0
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def page(rows: list[Row]) -> str:
    """The tables of races and of legal programs, and what they come to."""
    races = [one for one in rows if one.program.is_race]
    legal = [one for one in rows if not one.program.is_race]
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "pytest"))
    lines = [f"{datetime.date.today()}, {versions}, {os.cpu_count()} cores.", ""]
    if races:
        lines += [
            f"| race | ranks | points | found by exploring, runs of {RUNS} | seconds "
            f"| replayed | {' | '.join(WAYS)} |",
            "|---|--:|--:|---|--:|--:|" + "---|" * len(WAYS),
            *map(_race, races),
            "",
            *_sums(races),
            "",
        ]
    if legal:
        lines += [
            "| legal program | ranks | sessions | accused | undecided |",
            "|---|--:|--:|--:|--:|",
            *map(_legal, legal),
            "",
        ]
    every = [one for one_row in rows for one in one_row.explored]
    bounded, holds = sum(one.bounded for one in every), sum(one.holds for one in every)
    lines += [f"{bounded} of {holds} holds ended by time.", ""]
    return "\n".join(lines)


def _race(one: Row) -> str:
    name = one.program.name.removeprefix("test_").replace("_", " ")
    if one.program.source.startswith("https://"):
        name = f"[{name}]({one.program.source.partition(',')[0]})"
    found = ", ".join(str(each.schedule) if each.is_found else "none" for each in one.explored)
    seconds = ", ".join(f"{each.seconds:.0f}" for each in one.explored)
    replayed = f"{sum(one.replayed)} of {len(one.replayed)}"
    attempts = " | ".join(str(one.attempts[way]) for way in WAYS)
    cells = f"{one.program.ranks} | {one.points} | {found} | {seconds} | {replayed} | {attempts}"
    return f"| {name} | {cells} |"


def _legal(one: Row) -> str:
    name = one.program.name.removeprefix("test_").replace("_", " ")
    accused = sum(each.outcome == "failed" for each in one.explored)
    undecided = sum(each.undecided for each in one.explored)
    return f"| {name} | {one.program.ranks} | {len(one.explored)} | {accused} | {undecided} |"


def _sums(races: list[Row]) -> list[str]:
    many = [one for one in races if one.program.has_many_points]
    return [_sum("races", races), *([_sum("races among many points", many)] if many else [])]


def _sum(what: str, races: list[Row]) -> str:
    explored = sum(one.explored[0].is_found for one in races)
    ways = [f"{way} {sum(one.attempts[way].is_found for one in races)}" for way in WAYS]
    return f"Of {len(races)} {what} in equal time: explored {explored}, {', '.join(ways)}."
