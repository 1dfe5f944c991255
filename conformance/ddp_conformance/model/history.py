"""What ranks see of a model that trains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from ddp_conformance.framework.history import Record

Taken: TypeAlias = Literal["at the step", "in the step", "after backward", "in the end"]


@dataclass(frozen=True, slots=True)
class State(Record):
    """Content of parameters and buffers, at one moment."""

    moment: str
    """The moment in words, such as ``after step 2``; ranks have the same ones in the same order."""
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
    """When the gradients were taken: before an optimizer steps, and again in place of that where a
    subclass goes on with the step that it overrides; if parameters change without an optimizer,
    after the last backward pass, and again at the end of the step if they still exist."""
    owned: tuple[str, ...] = ()
    """Names of the parameters of the optimizer that is called."""


@dataclass(frozen=True, slots=True)
class OneProcessEnds(Record):
    """One process cannot take over the state: from this step on nothing is compared with it."""

    step: int


@dataclass(frozen=True, slots=True)
class Rounded(Record):
    """How far rounding in another order moves what one process, which has rank 0, sees of a step.

    The largest difference in its further runs, by what differs.
    """

    step: int
    gradients: tuple[tuple[int, str, float], ...]
    """The absolute difference of each gradient, after the optimizer call of the step and the
    parameter's name."""
    decisions: tuple[tuple[str, float], ...]
    statistics: tuple[tuple[str, float], ...]
    updates: tuple[tuple[str, float], ...] = ()
    """Absolute differences of parameters after the step."""


@dataclass(frozen=True, slots=True)
class Updated(Record):
    """One process, which has rank 0, has stepped with the ranks' own gradients."""

    step: int
    differing: tuple[tuple[str, float, float, float], ...]
    """Name of each parameter that then differs by more than its unit from the ranks', its value
    there, its value here, and that unit: of the last place, of the parameter or of the update."""


@dataclass(frozen=True, slots=True)
class UpdateUnknown(Record):
    """An optimizer's update cannot be repeated in one process."""

    step: int
    why: str
    """What the subject does, in words."""


@dataclass(frozen=True, slots=True)
class UnlikeOneProcess(Record):
    """A module in training mode that rightly differs between several ranks and one process."""

    module: str
    kind: Literal["BatchNorm", "Dropout"]


@dataclass(frozen=True, slots=True)
class Pass(Record):
    """One backward pass."""

    step: int
    place: int
    """The number of backward passes of this step before this one."""
    used: tuple[str, ...]
    """Parameters that the pass reached on this rank."""
    collectives: int
    """Collectives of the default group that began in the pass."""
    digest: str
    """The digest of this rank's gradients afterwards."""


@dataclass(frozen=True, slots=True)
class Overwrote(Record):
    """A forward pass changed parameters."""

    step: int
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Wrapped(Record):
    """Facts about the wrapped model."""

    names: tuple[str, ...]
    """Names of all parameters with ``requires_grad`` that this rank has; another one may have
    others."""
    static: bool
    """True for a DDP with ``static_graph``."""
    sharded: bool = False
    """True under ``fully_shard``: its backward pass also has collectives that reduce nothing."""


@dataclass(frozen=True, slots=True)
class Tied(Record):
    """One parameter has several names in one process, which has rank 0."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Buffers(Record):
    """Content of the buffers at a use."""

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
    """The decisions of a step."""

    step: int
    alone: bool
    """True for a single process with the samples of all ranks, which has rank 0."""
    stepped: bool
    """False if no optimizer was called."""
    decisions: tuple[tuple[str, float], ...]
    """What the step returned."""
    norm: float | None = None
    """The norm of the gradients after the last backward pass, in a single process; None without a
    pass."""


@dataclass(frozen=True, slots=True)
class Overflowed(Record):
    """A gradient scaler of torch found gradients that are not finite: it skips the step."""

    step: int
    alone: bool
    """True for a single process with the samples of all ranks, which has rank 0."""


@dataclass(frozen=True, slots=True)
class Coded(Record):
    """A step in which one rank's gradients are codes, and the others' are zeros."""

    step: int
    is_source: bool
    """Whether this rank has the codes."""
    incoming: tuple[tuple[str, str], ...]
    """Name of each parameter that got a gradient in that pass, and the gradient's digest."""


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
    """Name of each of the optimizer's parameters, and which elements of its gradient are not
    zero."""
