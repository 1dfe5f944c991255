"""What ranks see of a loop and of its callbacks; part of :mod:`ddp_conformance.history`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Traced:
    """A rank called a collective of some process group."""

    rank: int
    group: str
    """Name of the group, equal on all of its ranks."""
    members: tuple[int, ...]
    """Global ranks of the group."""
    number: int
    """Its place among this rank's collectives of the group, from 0."""
    what: str
    """Operation, dtype and shape."""
    functions: str = ""
    """The functions it was called through, innermost first; empty where ranks play different
    parts (a broadcast, a barrier) and may rightfully differ."""
    site: str = ""
    """The line, for people."""


@dataclass(frozen=True, slots=True)
class StepEnd:
    """A rank has made a step."""

    rank: int
    step: int
    decisions: tuple[tuple[str, str], ...] = ()
    """What was decided, by name, as text that shows every bit."""


@dataclass(frozen=True, slots=True)
class LoopEnd:
    """A rank has left the loop without an exception."""

    rank: int
    steps: int


@dataclass(frozen=True, slots=True)
class Tripped:
    """The check's error came here, in the middle of the step."""

    rank: int
    step: int


CallbackRecord: TypeAlias = Traced | StepEnd | LoopEnd | Tripped

LOOP_RECORDS: dict[str, type[CallbackRecord]] = {
    kind.__name__: kind for kind in (StepEnd, LoopEnd, Tripped)
}
"""By name, for those who read them from a file."""
