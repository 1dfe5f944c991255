"""What ranks see of a model that trains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from ddp_conformance.framework.history import Record

Taken: TypeAlias = Literal["at the step", "after backward", "in the end"]


@dataclass(frozen=True, slots=True)
class State(Record):
    """Content of parameters and buffers, at one moment."""

    moment: str
    """In words, such as ``after step 2``; ranks have the same ones in the same order."""
    parameters: tuple[tuple[str, str], ...]
    """Name and digest of each; sharded ones are put together first."""
    buffers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Gradients(Record):
    """What a step was made with."""

    step: int
    alone: bool
    """True for a single process with the samples of all ranks, which has rank 0."""
    values: tuple[tuple[str, tuple[float, ...]], ...]
    """Name and values of each parameter's gradient; empty values where there is none."""
    taken: Taken = "at the step"
    """When: before an optimizer steps; where none does and parameters change all the same, after
    the last backward pass, and again when all is done and they are still there."""


@dataclass(frozen=True, slots=True)
class OneProcessEnds(Record):
    """From a step on nothing is compared with one process, which cannot take over the state."""

    step: int


@dataclass(frozen=True, slots=True)
class UnlikeOneProcess(Record):
    """A module in training mode, whose output with several ranks is rightly another one."""

    module: str
    kind: Literal["BatchNorm", "Dropout"]


@dataclass(frozen=True, slots=True)
class Pass(Record):
    """One backward pass."""

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
class Overwrote(Record):
    """A forward pass changed parameters."""

    step: int
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Wrapped(Record):
    """What the model is."""

    names: tuple[str, ...]
    """Of all parameters that want a gradient."""
    static: bool
    """A DDP with ``static_graph``."""
    sharded: bool = False
    """By ``fully_shard``, whose backward pass has collectives that reduce nothing."""


@dataclass(frozen=True, slots=True)
class Buffers(Record):
    """Content of the buffers where it counts."""

    use: Literal["evaluation", "checkpoint"]
    step: int
    """The last one before."""
    contents: tuple[tuple[str, str], ...]
    """Name and digest of each."""


@dataclass(frozen=True, slots=True)
class Statistics(Record):
    """Running statistics of batches, after the first step."""

    alone: bool
    """True for a single process with the samples of all ranks, which has rank 0."""
    values: tuple[tuple[str, tuple[float, ...]], ...]
    """Name and values of each; none if the model keeps none."""


@dataclass(frozen=True, slots=True)
class Decided(Record):
    """What became of a step's gradients."""

    step: int
    alone: bool
    """True for a single process with the samples of all ranks, which has rank 0."""
    stepped: bool
    """False if no optimizer was called."""
    told: tuple[tuple[str, float], ...]
    """What the step returned."""
    norm: float | None = None
    """Of the gradients after the last backward pass, in a single process; None without a pass."""


@dataclass(frozen=True, slots=True)
class Coded(Record):
    """A step in which one rank's gradients are codes, and the others' are zeros."""

    step: int
    is_source: bool
    """Whether this rank has the codes."""
    incoming: tuple[tuple[str, str], ...]
    """Name of each parameter that a gradient came to in that pass, and the digest of what came."""


@dataclass(frozen=True, slots=True)
class Reduced(Record):
    """An operation of the rank that has the codes summed some of them with other ranks' values."""

    step: int
    members: tuple[int, ...]
    """Global ranks of the group."""
    elements: tuple[tuple[str, tuple[int, ...]], ...]
    """Name of each parameter, and which elements of its gradient."""
    place: int
    """Backward passes of this step that had begun, less one."""
    site: str
    """The line, for people."""


@dataclass(frozen=True, slots=True)
class SteppedWith(Record):
    """An optimizer is about to step."""

    step: int
    nonzero: tuple[tuple[str, tuple[int, ...]], ...]
    """Name of each of its parameters, and which elements of its gradient are not zero."""
