"""What ranks see of samples, passes and random numbers."""

from __future__ import annotations

from dataclasses import dataclass

from ddp_conformance.framework.history import Record


@dataclass(frozen=True, slots=True)
class Sample(Record):
    """The component delivered one sample."""

    epoch: int
    step: int
    """Number of the batch within the epoch of this rank."""
    index: int
    """The sample's index in the data set, as the sample itself carries it."""
    worker: int | None = None
    """The DataLoader worker that read it, if the batch names it; -1 for the rank's process."""


@dataclass(frozen=True, slots=True)
class EpochEnd(Record):
    """One pass over the component is over."""

    epoch: int
    batches: int
    exhausted: bool = True
    """False if the pass was cut off, because far more came than the data set holds."""


@dataclass(frozen=True, slots=True)
class Share(Record):
    """All deliveries of one pass over the component, in one record."""

    epoch: int
    batches: int
    exhausted: bool
    """False if the pass was cut off, because far more came than the data set holds."""
    indices: tuple[int, ...]
    """Indices in the order of delivery."""


@dataclass(frozen=True, slots=True)
class Draws(Record):
    """What a random number generator gives in an epoch, or would at its first batch."""

    epoch: int
    worker: int
    """-1 for the process of the rank itself."""
    generator: str
    """``python``, ``numpy`` or ``torch``; or the subject's name for draws of its own."""
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Drawn(Record):
    """The order that a global sampler drew."""

    items: tuple[tuple[int, ...], ...]
    """Batches of indices; single indices are batches of one."""


@dataclass(frozen=True, slots=True)
class Delivered(Record):
    """The share that a wrapper around a global sampler delivered."""

    items: tuple[tuple[int, ...], ...]
