"""What ranks see of data in moving windows; part of :mod:`ddp_conformance.history`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Stage: TypeAlias = Literal["sanity", "train", "val"]


@dataclass(frozen=True, slots=True)
class WindowSample:
    """One sample reached the model: what it says of itself, and what was announced then."""

    rank: int
    stage: Stage
    epoch: int
    step: int
    """Number of the batch within the epoch of this rank."""
    index: int
    """Position in its window."""
    window: str
    version: int
    announced_window: str
    announced_version: int
    token: str = ""
    reader: int | None = None
    """The rank that the code which read it took itself for."""
    worker: int | None = None
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class WindowPart:
    """An object that was in force at the first batch of an epoch."""

    rank: int
    stage: Stage
    epoch: int
    version: int
    """The announced one."""
    part: str
    identity: int
    """Equal for the same object. All of them are kept alive until the run is over, so a
    number, unlike ``id()``, is never given out again."""


Happening: TypeAlias = Literal[
    "epoch start", "batch start", "batch end", "setup()", "train_dataloader()"
]


@dataclass(frozen=True, slots=True)
class WindowEvent:
    """Something happened; the order of a rank's events is that of its history."""

    rank: int
    epoch: int
    what: Happening


@dataclass(frozen=True, slots=True)
class Reader:
    """One sample was read: by whom, and by whom the code that read it thinks."""

    rank: int
    index: int
    told: int
    """The rank that the sample tells."""
    worker: int


WindowRecord: TypeAlias = WindowSample | WindowPart | WindowEvent | Reader
