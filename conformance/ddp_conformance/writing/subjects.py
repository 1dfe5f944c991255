"""The kind of subject that writes files: a logger, a text log, a saver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ddp_conformance.framework.subjects import Subject


def no_paths(writer: Any) -> tuple[str | Path, ...]:
    """A writer that does not report where it writes."""
    return ()


def not_closed(writer: Any) -> None:
    """A writer that has written when its call returns."""


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
    """Returns the paths to which the writer writes; called on every rank after the last record."""
    close: Callable[[Any], object] = not_closed
    """Called with the writer on every rank after the last record: what buffers writes then."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if "published" in self.traits and self.records is None:
            raise ValueError(f"{self.name}: the trait 'published' needs records=")


@dataclass(frozen=True)
class Guard(Subject):
    """Something that lets one rank act: a decorator, ``is_main_process()``.

    ``make(case)`` returns a function of an action, a function without arguments, which it
    calls on the one rank and not on the others. It must find out the rank by itself.
    """

    kind: ClassVar[str] = "guard"

    launchers: tuple[str, ...] = ("torchrun", "lightning")
    """Launchers under which the guard must work; it may also raise on all ranks. ``slurm`` is known
    too."""


@dataclass(frozen=True)
class Preparation(Subject):
    """A ``LightningDataModule`` that has files to make or to fetch.

    ``make(case)`` returns a new one whose files lie below ``case.directory``.
    """

    kind: ClassVar[str] = "preparation"
