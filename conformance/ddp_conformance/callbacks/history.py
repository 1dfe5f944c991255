"""What ranks see of a loop and of its callbacks."""

from __future__ import annotations

from dataclasses import dataclass

from ddp_conformance.framework.history import Record


@dataclass(frozen=True, slots=True)
class Traced(Record):
    """A rank called a collective of some process group."""

    group: str
    """Name of the group, equal on all of its ranks."""
    members: tuple[int, ...]
    """Global ranks of the group."""
    number: int
    """The place of the call among this rank's collectives of the group, from 0."""
    what: str
    """Operation, reduction, root, dtype and shape."""
    functions: str = ""
    """The functions through which the collective was called, innermost first; empty for operations
    in which ranks have different parts (a broadcast, a barrier), as their functions may differ."""
    site: str = ""
    """The line that called the collective, for the text of a violation."""


@dataclass(frozen=True, slots=True)
class StepEnd(Record):
    """A rank has completed a step."""

    step: int
    decisions: tuple[tuple[str, str], ...] = ()
    """The decisions by name, as text that shows every bit."""


@dataclass(frozen=True, slots=True)
class StepCost(Record):
    """The collectives of a step, or of a metric's ``update``."""

    step: int
    made: tuple[str, ...]
    """The collectives, each with its line."""


@dataclass(frozen=True, slots=True)
class LoopEnd(Record):
    """A rank has left the loop without an exception."""

    steps: int


@dataclass(frozen=True, slots=True)
class Tripped(Record):
    """The check raised its error here, in the middle of the step."""

    step: int
