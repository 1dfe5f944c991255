"""What ranks see of files, guards and preparation; part of :mod:`ddp_conformance.history`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Opened:
    """Python code of this rank wrote to a file that all ranks share."""

    rank: int
    path: str
    """Below the folder."""
    during: str = ""
    """What was running, in words; empty for all of the subject's code."""
    lock: bool = False
    """This rank locked it, and it is empty."""


@dataclass(frozen=True, slots=True)
class Glimpse:
    """The shared folder changed while a record was written, and this could be read from it."""

    rank: int
    number: int
    """The record that was asked for."""
    last: int
    """The last record that can be read; -1 for none."""
    problem: str = ""
    """Why the files could not be read."""
    after: str = ""
    """The code that had just run."""


@dataclass(frozen=True, slots=True)
class Saw:
    """What this rank read as soon as its call for a record had returned."""

    rank: int
    number: int
    last: int
    late: int
    """The rank that came after all others."""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Guarded:
    """What a guard did with an action."""

    rank: int
    stage: str
    ran: bool
    error: str = ""
    """The exception in place of an answer."""
    machine: int = 0
    """Number of the machine that the rank was told to be on."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """``prepare_data`` has ended on this rank."""

    rank: int
    in_setup: bool
    """It was called while ``setup`` ran, or after it."""


@dataclass(frozen=True, slots=True)
class SetUp:
    """``setup`` began on this rank."""

    rank: int
    prepared: bool
    """``prepare_data`` had ended somewhere."""


WritingRecord: TypeAlias = Opened | Glimpse | Saw | Guarded | Prepared | SetUp
