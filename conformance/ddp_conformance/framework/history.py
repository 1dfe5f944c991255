"""What ranks saw: the frozen records between the two halves of a check.

A rank records; the histories of all ranks are gathered; a judge, a pure function,
reads them. Records travel between processes, so their fields are numbers and strings.
A guarantee group that observes something new has kinds of its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ddp_conformance.framework.case import Case

KINDS: dict[str, type[Record]] = {}
"""By name, for those who read records from a file."""


@dataclass(frozen=True, slots=True)
class Record:
    """What one rank saw of a subject. Raises ``TypeError`` for a kind whose name is taken."""

    rank: int

    def __init_subclass__(cls) -> None:
        # Twice for each kind, since slots make a class anew.
        known = KINDS.setdefault(cls.__name__, cls)
        if known.__module__ != cls.__module__:
            raise TypeError(f"{known.__module__} has records that are called {cls.__name__}, too")
        KINDS[cls.__name__] = cls


@dataclass(frozen=True, slots=True)
class Sample(Record):
    """One sample came out of the component."""

    epoch: int
    step: int
    """Number of the batch within the epoch of this rank."""
    index: int
    """The sample's index in the data set, as the sample itself carries it."""
    worker: int | None = None
    """The DataLoader worker that read it, if the batch says so; -1 for the rank's process."""


@dataclass(frozen=True, slots=True)
class EpochEnd(Record):
    """One pass over the component is over."""

    epoch: int
    batches: int
    exhausted: bool = True
    """False if the pass was cut off, because far more came than the data set holds."""


@dataclass(frozen=True, slots=True)
class Share(Record):
    """All that one pass over the component delivered, in short."""

    epoch: int
    batches: int
    exhausted: bool
    """As for :class:`EpochEnd`."""
    indices: tuple[int, ...]
    """In the order of delivery."""


@dataclass(frozen=True, slots=True)
class Draws(Record):
    """What a random number generator gives in an epoch, or would at its first batch."""

    epoch: int
    worker: int
    """-1 for the process of the rank itself."""
    generator: str
    """``python``, ``numpy`` or ``torch``; or the subject whose own draws they are."""
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Drawn(Record):
    """A global sampler was asked for its order, and this is what it drew."""

    items: tuple[tuple[int, ...], ...]
    """Batches of indices; single indices are batches of one."""


@dataclass(frozen=True, slots=True)
class Delivered(Record):
    """What came out of a wrapper around a global sampler."""

    items: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Refused(Record):
    """The component raised in place of delivering."""

    error: str
    """Name of the exception's type."""


@dataclass(frozen=True, slots=True)
class Raised(Record):
    """Code of the subject raised where no exception is an answer."""

    error: str
    """The exception with its type, and the place it came from."""


@dataclass(frozen=True, slots=True)
class Expected(Record):
    """What a single process reports for the samples of all ranks."""

    stage: str
    """Which report it is, in words; the ranks' reports have the same."""
    values: tuple[float, ...]
    """Computed in float64."""


@dataclass(frozen=True, slots=True)
class Measured(Record):
    """A rank reported this."""

    stage: str
    values: tuple[float, ...]
    """Empty if it reported nothing."""


@dataclass(frozen=True, slots=True)
class Failed(Record):
    """Code of the subject raised on a rank where that is an answer, and a wrong one."""

    error: str
    """The exception with its type, and the place it came from."""


@dataclass(frozen=True, slots=True)
class Collective(Record):
    """A rank was about to make a collective of the whole group."""

    number: int
    """Its place among those of this rank, from 0."""
    what: str
    """Operation, reduction, root, dtype and shape; or the words for the end of the code."""
    site: str = ""
    """The line that made it: evidence for people, for ranks may differ in it rightfully."""


def without_ones(what: str) -> str:
    """A collective without its shapes' dimensions of length 1: ``allreduce float32[]`` for ``[1]``.

    Backends go by type and memory: they make one collective of ``[]`` on one rank and ``[1]`` on
    another.
    """
    return _SHAPE.sub(_longer_than_one, what)


_SHAPE = re.compile(r"\[([\d, ]*)\]")


def _longer_than_one(shape: re.Match[str]) -> str:
    return f"[{', '.join(length for length in shape[1].split(', ') if length != '1')}]"


@dataclass(frozen=True, slots=True)
class Wrote(Record):
    """A file was in the folder that this rank alone was given."""

    path: str
    """Below the folder."""
    lock: bool = False
    """This rank locked it, and it is empty."""
    there: bool = False
    """It was there before, as another rank had made it."""


@dataclass(frozen=True, slots=True)
class ReadBack(Record):
    """What the shared folder held when all ranks had written."""

    numbers: tuple[int, ...]
    """Record numbers in the order in which they stand."""
    problem: str = ""
    """Why they could not be read."""


@dataclass(frozen=True, slots=True)
class Told(Record):
    """Where a writer says that it writes."""

    paths: tuple[str, ...]
    missing: tuple[str, ...] = ()
    """Those that did not exist when all ranks had written."""


History: TypeAlias = Sequence[Record]


@dataclass(frozen=True, slots=True)
class Run:
    """One case with the history of all its ranks, by rank."""

    case: Case
    """As rank 0 saw it."""
    history: tuple[Record, ...]
