"""What is known of each program: ``programs/records.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fidelity.races.delays import Delay, line_of
from fidelity.races.running import PROGRAMS


@dataclass(frozen=True, slots=True)
class Program:
    """A test file whose truth is known."""

    name: str
    ranks: int
    is_race: bool
    source: str = ""
    """The place at which a race of this shape was seen."""
    kinds: tuple[str, ...] = ()
    twin: str = ""
    """The race of which a legal program is the mended form."""
    arguments: tuple[str, ...] = ()
    """Options of pytest, without which the program cannot be run several times in a session."""
    delays: tuple[Delay, ...] = ()
    """Delays under all of which together a race fails, and under none of several alone."""

    @property
    def path(self) -> Path:
        """The path of the test file."""
        return PROGRAMS / ("races" if self.is_race else "legal") / f"{self.name}.py"

    @property
    def has_many_points(self) -> bool:
        """Whether the race is among 100 or more unrelated points."""
        return "many points" in self.kinds


def programs(only: str = "") -> list[Program]:
    """All programs whose names contain a text; the races first.

    Raises:
        ValueError: there is none, or a place of a delay is not in its program.
    """
    records = tomllib.loads((PROGRAMS / "records.toml").read_text())
    found = [
        _program(name, record, is_race=kind == "races")
        for kind in ("races", "legal")
        for name, record in records[kind].items()
        if only in name
    ]
    if not found:
        raise ValueError(f"no program's name contains {only!r}")
    return found


def _program(name: str, record: Mapping[str, Any], *, is_race: bool) -> Program:
    program = Program(
        name,
        record["ranks"],
        is_race,
        record.get("source", ""),
        tuple(record.get("kinds", ())),
        record.get("twin", ""),
        tuple(record.get("arguments", ())),
    )
    source = program.path.read_text()
    delays = tuple(_delay(source, delay) for delay in record.get("delays", ()))
    fields = {field: getattr(program, field) for field in Program.__slots__}
    return Program(**{**fields, "delays": delays})


def _delay(source: str, record: Mapping[str, Any]) -> Delay:
    call = record.get("call", "")
    line = 0 if call else line_of(source, record["before"])
    return Delay(record["rank"], line, record["seconds"], record.get("nth", 0), call)
