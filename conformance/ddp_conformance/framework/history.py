"""What ranks observed: the frozen records between the two halves of a check.

A rank records; the histories of all ranks are gathered; a judge, a pure function,
reads them. Records travel between processes, so their fields are numbers and strings.
Kinds of record that only one guarantee group needs are in that group's ``history``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ddp_conformance.framework.case import Case

KINDS: dict[str, type[Record]] = {}
"""Kinds of records by name, for reading records from a file. A kind is here once its module is
imported."""


@dataclass(frozen=True, slots=True)
class Record:
    """What one rank observed. Defining a second kind of the same name is a ``TypeError``."""

    rank: int

    def __init_subclass__(cls) -> None:
        # Called twice for each kind: `slots=True` creates a second class.
        known = KINDS.setdefault(cls.__name__, cls)
        if known.__module__ != cls.__module__:
            raise TypeError(f"{known.__module__} already has a record called {cls.__name__}")
        KINDS[cls.__name__] = cls


@dataclass(frozen=True, slots=True)
class Refused(Record):
    """The component raised instead of delivering."""

    error: str
    """Name of the exception's type."""


@dataclass(frozen=True, slots=True)
class Raised(Record):
    """Code of the subject raised where an exception leaves the guarantee undecided."""

    error: str
    """The exception with its type, and the place from which it came."""


@dataclass(frozen=True, slots=True)
class Measured(Record):
    """The values that a rank reported."""

    stage: str
    values: tuple[float, ...]
    """The values; empty if the rank reported nothing."""


@dataclass(frozen=True, slots=True)
class Failed(Record):
    """Code of the subject raised on a rank where an exception breaks the guarantee."""

    error: str
    """The exception with its type, and the place from which it came."""


@dataclass(frozen=True, slots=True)
class Collective(Record):
    """A rank was about to make a collective of the whole group."""

    number: int
    """The place of the collective among those of this rank, from 0."""
    what: str
    """Operation, reduction, root, dtype and shape; or the text for the end of the code."""
    site: str = ""
    """The line that made the collective: evidence only, as ranks may call from different lines."""


def without_ones(what: str) -> str:
    """A collective without its shapes' dimensions of length 1: ``allreduce float32[]`` for ``[1]``.

    Backends compare dtype and number of elements, so ``[]`` on one rank and ``[1]`` on another
    match.
    """
    return _SHAPE.sub(_longer_than_one, what)


_SHAPE = re.compile(r"\[([\d, ]*)\]")


def _longer_than_one(shape: re.Match[str]) -> str:
    return f"[{', '.join(length for length in shape[1].split(', ') if length != '1')}]"


History: TypeAlias = Sequence[Record]


@dataclass(frozen=True, slots=True)
class Run:
    """One case with the history of all its ranks, by rank."""

    case: Case
    """The case as rank 0 saw it."""
    history: tuple[Record, ...]
