"""What ranks see of a model that trains; part of :mod:`ddp_conformance.history`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias


@dataclass(frozen=True, slots=True)
class State:
    """Content of parameters and buffers, at one moment."""

    rank: int
    moment: str
    """In words, such as ``after step 2``; ranks have the same ones in the same order."""
    parameters: tuple[tuple[str, str], ...]
    """Name and digest of each; sharded ones are put together first."""
    buffers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Gradients:
    """What an optimizer was about to step with."""

    rank: int
    step: int
    alone: bool
    """True for a single process with the samples of all ranks, which has rank 0."""
    values: tuple[tuple[str, tuple[float, ...]], ...]
    """Name and values of each parameter's gradient; empty values where there is none."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One backward pass."""

    rank: int
    step: int
    place: int
    """Backward passes of this step before."""
    used: tuple[str, ...]
    """Parameters that it reached on this rank."""
    collectives: int
    """Collectives of the default group that began in it."""
    digest: str
    """Of this rank's gradients afterwards."""


@dataclass(frozen=True, slots=True)
class Overwrote:
    """A forward pass changed parameters."""

    rank: int
    step: int
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Wrapped:
    """What the model is."""

    rank: int
    names: tuple[str, ...]
    """Of all parameters that want a gradient."""
    static: bool
    """A DDP with ``static_graph``."""
    sharded: bool = False
    """By ``fully_shard``, whose backward pass has collectives that reduce nothing."""


@dataclass(frozen=True, slots=True)
class Buffers:
    """Content of the buffers where it counts."""

    rank: int
    use: Literal["evaluation", "checkpoint"]
    step: int
    """The last one before."""
    contents: tuple[tuple[str, str], ...]
    """Name and digest of each."""


@dataclass(frozen=True, slots=True)
class Decided:
    """What became of a step's gradients."""

    rank: int
    step: int
    alone: bool
    """True for a single process with the samples of all ranks, which has rank 0."""
    stepped: bool
    """False if no optimizer was called."""
    told: tuple[tuple[str, float], ...]
    """What the step returned."""
    norm: float | None = None
    """Of the gradients after the last backward pass, in a single process; None without a pass."""


ModelRecord: TypeAlias = State | Gradients | Pass | Overwrote | Wrapped | Buffers | Decided

MODEL_RECORDS: dict[str, type[ModelRecord]] = {
    kind.__name__: kind for kind in (State, Gradients, Pass, Overwrote, Wrapped, Buffers, Decided)
}
"""By name, for those who read them from a file."""
