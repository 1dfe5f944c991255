"""The kind of subject that writes files: a logger, a text log, a saver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ddp_conformance.subjects import Subject


def no_paths(writer: Any) -> tuple[str | Path, ...]:
    """A writer that tells nobody where it writes."""
    return ()


@dataclass(frozen=True)
class Writer(Subject):
    """Something that every rank calls and that writes files below ``case.directory``.

    ``make(case)`` returns a function of a number; the check calls it on every rank with
    0, 1, 2, ... and the writer makes record number so-and-so. ``case.directory`` may be
    another folder on each rank.
    """

    kind: ClassVar[str] = "writer"

    records: Callable[[Path], list[Any]] | None = None
    """Reads the record numbers back from the shared folder, in the order in which they stand;
    raises for content that cannot be read. None if the files hold no such records."""
    paths: Callable[[Any], tuple[str | Path, ...]] = no_paths
    """What the writer says of where it writes; asked on every rank after the last record."""
