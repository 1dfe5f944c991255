"""What ranks saw: the frozen records between the two halves of a check.

A rank records; the histories of all ranks are gathered; a judge, a pure function,
reads them. Records travel between processes, so their fields are numbers and strings.
A guarantee group that observes something new adds its record type here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ddp_conformance.cache_history import CacheRecord
from ddp_conformance.callback_history import CallbackRecord
from ddp_conformance.case import Case
from ddp_conformance.loop_history import LoopRecord
from ddp_conformance.model_history import ModelRecord
from ddp_conformance.training_history import TrainingRecord
from ddp_conformance.window_history import WindowRecord
from ddp_conformance.writing_history import WritingRecord


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample came out of the component."""

    rank: int
    epoch: int
    step: int
    """Number of the batch within the epoch of this rank."""
    index: int
    """The sample's index in the data set, as the sample itself carries it."""
    worker: int | None = None
    """The DataLoader worker that read it, if the batch says so; -1 for the rank's process."""


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """One pass over the component is over."""

    rank: int
    epoch: int
    batches: int
    exhausted: bool = True
    """False if the pass was cut off, because far more came than the data set holds."""


@dataclass(frozen=True, slots=True)
class Share:
    """All that one pass over the component delivered, in short."""

    rank: int
    epoch: int
    batches: int
    exhausted: bool
    """As for :class:`EpochEnd`."""
    indices: tuple[int, ...]
    """In the order of delivery."""


@dataclass(frozen=True, slots=True)
class Draws:
    """What a random number generator would give next, at the first batch of an epoch."""

    rank: int
    epoch: int
    worker: int
    """-1 for the process of the rank itself."""
    generator: str
    """``python``, ``numpy`` or ``torch``."""
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Drawn:
    """A global sampler was asked for its order, and this is what it drew."""

    rank: int
    items: tuple[tuple[int, ...], ...]
    """Batches of indices; single indices are batches of one."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """What came out of a wrapper around a global sampler."""

    rank: int
    items: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """The component raised in place of delivering."""

    rank: int
    error: str
    """Name of the exception's type."""


@dataclass(frozen=True, slots=True)
class Raised:
    """Code of the subject raised where no exception is an answer."""

    rank: int
    error: str
    """The exception with its type, and the place it came from."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What a single process reports for the samples of all ranks."""

    rank: int
    stage: str
    """Which report it is, in words; the ranks' reports have the same."""
    values: tuple[float, ...]
    """Computed in float64."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A rank reported this."""

    rank: int
    stage: str
    values: tuple[float, ...]
    """Empty if it reported nothing."""


@dataclass(frozen=True, slots=True)
class Failed:
    """Code of the subject raised on a rank where that is an answer, and a wrong one."""

    rank: int
    error: str
    """The exception with its type, and the place it came from."""


@dataclass(frozen=True, slots=True)
class Collective:
    """A rank was about to make a collective of the whole group."""

    rank: int
    number: int
    """Its place among those of this rank, from 0."""
    what: str
    """Operation, dtype and shape; or the words for the end of the component's code."""
    site: str = ""
    """The line that made it: evidence for people, for ranks may differ in it rightfully."""


@dataclass(frozen=True, slots=True)
class Wrote:
    """A file was in the folder that this rank alone was given."""

    rank: int
    path: str
    """Below the folder."""
    lock: bool = False
    """This rank locked it, and it is empty."""
    there: bool = False
    """It was there before, as another rank had made it."""


@dataclass(frozen=True, slots=True)
class ReadBack:
    """What the shared folder held when all ranks had written."""

    rank: int
    numbers: tuple[int, ...]
    """Record numbers in the order in which they stand."""
    problem: str = ""
    """Why they could not be read."""


@dataclass(frozen=True, slots=True)
class Told:
    """Where a writer says that it writes."""

    rank: int
    paths: tuple[str, ...]
    missing: tuple[str, ...] = ()
    """Those that did not exist when all ranks had written."""


Record: TypeAlias = (
    Sample
    | EpochEnd
    | Share
    | Draws
    | Drawn
    | Delivered
    | Refused
    | Raised
    | Expected
    | Measured
    | Failed
    | Collective
    | Wrote
    | ReadBack
    | Told
    | WindowRecord
    | CallbackRecord
    | CacheRecord
    | WritingRecord
    | LoopRecord
    | TrainingRecord
    | ModelRecord
)
History: TypeAlias = Sequence[Record]


@dataclass(frozen=True, slots=True)
class Run:
    """One case with the history of all its ranks, by rank."""

    case: Case
    """As rank 0 saw it."""
    history: tuple[Record, ...]
