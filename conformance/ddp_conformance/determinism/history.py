"""What ranks saw of a training loop: its steps, its losses, its parameters, its memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ddp_conformance.framework.history import Record


@dataclass(frozen=True, slots=True)
class LoopStep(Record):
    """One optimizer step."""

    run: str
    """The run, one of several: ``whole``, ``again``, ``epoch end``, ``mid-epoch``, ``alone``,
    ``saving``, ``without FILE``. Of a run that was saved and resumed both parts have one name."""
    epoch: int
    ids: tuple[int, ...]
    """The samples of this rank."""
    draws: tuple[tuple[str, float], ...]
    """What each global random generator gave after it."""


@dataclass(frozen=True, slots=True)
class LoopLoss(Record):
    """What the loop reports at the end of an epoch."""

    run: str
    epoch: int
    loss: float


@dataclass(frozen=True, slots=True)
class Sketch:
    """A parameter or a buffer in a few words."""

    name: str
    digest: str
    """The digest of the bytes."""
    norm: float
    projection: float
    """The product of the values with a fixed irregular vector, by which close values are
    recognised."""


@dataclass(frozen=True, slots=True)
class LoopParameters(Record):
    """The model's state."""

    run: str
    when: Literal["begin", "end"]
    sketches: tuple[Sketch, ...]
    """Sketches by name; of whole tensors, also where each rank holds a shard."""


@dataclass(frozen=True, slots=True)
class LoopSaved(Record):
    """What lies where a run was to save a checkpoint, when it has ended on all ranks."""

    run: str
    where: str
    """The field of the leg, such as ``save_at[1]``."""
    files: int


@dataclass(frozen=True, slots=True)
class LoopRaised(Record):
    """A run that may be refused was: the loop raised."""

    run: str
    error: str
    """The exception with its type, and the place from which it came."""


@dataclass(frozen=True, slots=True)
class LoopRounding(Record):
    """How far rounding moves the final parameters of one process."""

    distances: tuple[tuple[str, float], ...]
    """The largest norm of a difference, by the parameter's name."""


@dataclass(frozen=True, slots=True)
class RebuildsBuckets(Record):
    """The loop made a DDP that changes its gradient buckets after the first step.

    In the first step parameters lie in them in the order of their registration, later in the
    order in which their gradients came. A DDP with ``find_unused_parameters`` and without a static
    graph keeps the first buckets.
    """

    run: str


@dataclass(frozen=True, slots=True)
class HeldModule(Record):
    """A module that the data set holds."""

    path: str
    """The attributes that lead from the data set to the module, for example ``dataset.encoder``."""
    trained: bool
    """Whether the module is, or shares a parameter with, an object of the model that is trained."""
    changed: bool
    """Whether the module is on another device, or has other parameters, after the training than
    before it."""
    altered: str = ""
    """What others than the data set have changed of its mode, ``requires_grad`` or hooks."""


@dataclass(frozen=True, slots=True)
class DeviceMemory(Record):
    """What this rank's process has allocated on a GPU."""

    own: int
    """Number of the GPU that belongs to the rank."""
    device: int
    allocated: int
    """Bytes, at their peak."""
