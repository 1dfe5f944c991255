"""Kinds of subjects that act in every step of a loop: callbacks, and the way a loop ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from ddp_conformance.framework.subjects import Subject
from ddp_conformance.launched.order import Named

Trip: TypeAlias = Callable[[int], None]
"""Called by the subject with the number of the step; raises in one step of one rank."""


@dataclass(frozen=True)
class Callback(Subject):
    """Something that acts in every step of a loop: a schedule, early stopping, a sanity check.

    ``make(case)`` returns the loop of ``case.rank`` as an iterator, for example a generator: it
    makes one step each time that it is advanced, and yields what was decided there, as a mapping
    from name (``stop``, ``lr``, ``skip``, ``best``, ``resolution``) to value, or None.
    """

    kind: ClassVar[str] = "callback"

    collectives: int | None = None
    """The most collectives in a step; with the trait ``states_collectives``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_collectives(self.collectives)


@dataclass(frozen=True)
class ErrorPath(Subject):
    """A loop that runs user code, and what it does when that code raises on one rank.

    ``make(case, trip)`` returns an iterator as for :class:`Callback`. Where user code runs (a
    callback, a data set), the loop calls ``trip(step)`` with the number of the step, from 0.
    It is also called in processes of its own, in some of which ``trip`` ends the process.
    """

    kind: ClassVar[str] = "error path"

    timeout: float = 60.0
    """Seconds that a run may take in which a rank dies."""
    patience: float = 10.0
    """Seconds in which all other ranks must end after one has ended."""

    def __post_init__(self) -> None:
        super().__post_init__()
        Named.of(self.make)
