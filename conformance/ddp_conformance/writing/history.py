"""What ranks see of files, guards and preparation."""

from __future__ import annotations

from dataclasses import dataclass

from ddp_conformance.framework.history import Record


@dataclass(frozen=True, slots=True)
class Wrote(Record):
    """A file was in the folder that this rank alone was given."""

    path: str
    """The path below the folder."""
    lock: bool = False
    """Whether this rank locked the file, and it is empty."""
    there: bool = False
    """Whether the file was there before, as another rank had made it."""


@dataclass(frozen=True, slots=True)
class ReadBack(Record):
    """What the shared folder held when all ranks had written."""

    numbers: tuple[int, ...]
    """Record numbers in the order in which they stand."""
    problem: str = ""
    """Why the records could not be read; empty if they could."""


@dataclass(frozen=True, slots=True)
class ReportedPaths(Record):
    """The paths to which a writer reports that it writes."""

    paths: tuple[str, ...]
    missing: tuple[str, ...] = ()
    """The paths that did not exist when all ranks had written."""


@dataclass(frozen=True, slots=True)
class Opened(Record):
    """Python code of this rank wrote to a file that all ranks share."""

    path: str
    """The path below the folder."""
    during: str = ""
    """What was running, in words; empty for all of the subject's code."""
    lock: bool = False
    """Whether this rank locked the file, and it is empty."""
    claim: str = ""
    """The claim on the file: one rank with it has written, and the others with it were refused."""
    own: bool = False
    """Whether this rank has written what it claims; two that have are two that write."""


@dataclass(frozen=True, slots=True)
class Glimpse(Record):
    """The shared folder changed while a record was written, and this could be read from it."""

    number: int
    """The record to publish."""
    last: int
    """The last record that can be read; -1 for none."""
    problem: str = ""
    """Why the files could not be read."""
    after: str = ""
    """The code that had just run."""


@dataclass(frozen=True, slots=True)
class Saw(Record):
    """What this rank read as soon as its call for a record had returned."""

    number: int
    last: int
    late: int
    """The rank that came after all others."""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Guarded(Record):
    """What a guard did with an action."""

    stage: str
    ran: bool
    error: str = ""
    """The exception in place of an answer."""
    machine: int = 0
    """Number of the machine that the environment puts the rank on."""


@dataclass(frozen=True, slots=True)
class Prepared(Record):
    """``prepare_data`` has ended on this rank."""

    in_setup: bool
    """Whether the data were prepared while ``setup`` ran, or after it."""


@dataclass(frozen=True, slots=True)
class SetUp(Record):
    """``setup`` began on this rank."""

    prepared: bool
    """``prepare_data`` had ended somewhere."""
