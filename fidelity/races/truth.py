"""What proves the truth of a program, without any exploring: plain sleeps in a copy of it."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from fidelity.races.delays import Delay, places, repeated, with_places
from fidelity.races.records import Program
from fidelity.races.running import Run, session

TIMES = 10
"""A race passes so often without its delays, and fails so often with them."""
_ALONE = 3
_SWEPT = 0.3
"""Seconds of a sleep at any place: many times what the others take from there to their end."""
_TRIPLES = 10

Planned = tuple[str, list[Delay]]
"""The kind of a run, and its delays."""


@dataclass(frozen=True, slots=True)
class Truth:
    """How the runs of one program ended, by their kind."""

    program: Program
    runs: dict[str, list[Run]]
    """``plain``, ``late``, ``alone`` (some of the delays that are needed), ``place``."""

    @property
    def is_proved(self) -> bool:
        """Whether all runs ended as they have to."""
        return not self.mistakes()

    def mistakes(self) -> list[tuple[str, Run]]:
        """Runs that did not end as they have to, with their kinds."""
        return [
            (kind, run)
            for kind, runs in self.runs.items()
            for run in runs
            if (run.outcome == "failed") != (kind == "late")
        ]

    def __str__(self) -> str:
        parts = []
        for kind, runs in self.runs.items():
            failed = sum(run.outcome == "failed" for run in runs)
            parts.append(f"{kind}: {failed} of {len(runs)} fail")
        return f"{self.program.name}: {'; '.join(parts)}"


def planned(program: Program) -> list[Planned]:
    """The runs that prove a program."""
    if not program.is_race:
        return [("plain", [])] * _ALONE + list(_everywhere(program)) + list(_triples(program))
    runs: list[Planned] = [("plain", [])] * TIMES
    runs += [("late", list(program.delays))] * TIMES
    if len(program.delays) > 1:
        runs += [("alone", [delay]) for delay in program.delays for _ in range(_ALONE)]
        runs += _everywhere(program)
    return runs


def _everywhere(program: Program) -> Iterator[Planned]:
    """A sleep of each rank at each place: the first time, and the second if there may be one."""
    source = program.path.read_text()
    again = repeated(source)
    for line in places(source):
        for rank in range(program.ranks):
            for nth in (1, 2) if line in again else (1,):
                yield "place", [Delay(rank, line, _SWEPT, nth)]


def _triples(program: Program) -> Iterator[Planned]:
    chosen = random.Random(program.name)
    lines = places(program.path.read_text())
    for _ in range(_TRIPLES):
        some = [
            Delay(
                chosen.randrange(program.ranks), chosen.choice(lines), _SWEPT, chosen.choice((0, 1))
            )
            for _ in range(3)
        ]
        yield "triple", some


def truth(program: Program) -> Truth:
    """Run a copy of a program, with its delays.

    Raises:
        RuntimeError: the session has not come to its end.
    """
    plan = planned(program)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / program.path.name
        copy.write_text(with_places(program.path.read_text()))
        delays = Path(folder) / "delays.json"
        named = [
            (f"{kind}-{number}", [asdict(delay) for delay in late])
            for number, (kind, late) in enumerate(plan)
        ]
        delays.write_text(json.dumps({program.name: named}))
        found = session(
            [copy],
            ["-p", "no:cacheprovider", "--ddp-timeout=60", *program.arguments],
            plugins=("races_recorder", "races_late"),
            variables={"RACES_DELAYS": str(delays)},
        )
    runs: dict[str, list[Run]] = {kind: [] for kind, _ in plan}
    for run in found.runs:
        kind = run.name.partition("[")[2].partition("-")[0]
        runs[kind].append(run)
    return Truth(program, runs)
