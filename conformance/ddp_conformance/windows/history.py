"""What ranks see of data in moving windows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from ddp_conformance.framework.history import Record

Stage: TypeAlias = Literal["sanity", "train", "val"]


@dataclass(frozen=True, slots=True)
class WindowSample(Record):
    """One sample reached the model: its stamp, and what was announced then."""

    stage: Stage
    epoch: int
    step: int
    """Number of the batch within the epoch of this rank."""
    index: int
    """Position of the sample in its window."""
    window: str
    version: int
    announced_window: str
    announced_version: int
    token: str = ""
    reader: int | None = None
    """The rank that the reading code found for itself."""
    worker: int | None = None
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class WindowPart(Record):
    """An object that was in force at the first batch of an epoch."""

    stage: Stage
    epoch: int
    version: int
    """The version that was announced."""
    part: str
    identity: int
    """A number, equal for the same object. All objects are kept alive until the run is over, so a
    number, unlike ``id()``, is never given out again."""


Happening: TypeAlias = Literal[
    "epoch start", "batch start", "batch end", "setup()", "train_dataloader()"
]


@dataclass(frozen=True, slots=True)
class WindowEvent(Record):
    """Something happened; the order of a rank's events is that of its history."""

    epoch: int
    what: Happening


@dataclass(frozen=True, slots=True)
class WindowReader(Record):
    """One sample was read: on which rank, and which rank the reading code found for itself."""

    index: int
    found: int
    """The rank that the sample carries."""
    worker: int
