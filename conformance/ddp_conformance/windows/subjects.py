"""The kind of subject with data that change between epochs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from ddp_conformance.framework.subjects import Subject
from ddp_conformance.windows.data import Announcement, Split, Stamp, announced_by, stamps_of


@dataclass(frozen=True)
class DataModule(Subject):
    """A Lightning data module with windows that move between epochs, and the callbacks for that.

    ``make(case)`` returns a :class:`~ddp_conformance.windows.data.WindowRun`, with windows of about
    ``case.size`` samples and ``case.num_workers`` workers. Called in the ranks' process group.
    """

    kind: ClassVar[str] = "data module"

    stamps: Callable[[Any], tuple[Stamp, ...]] = stamps_of
    """The stamps of the samples in one batch."""
    announced: Callable[[Any, Split], Announcement] = announced_by
    """The window and version that the data module announces."""
    schedule: Callable[[int], str] | None = None
    """The window that an epoch must train on; with the trait ``scheduled``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if ("scheduled" in self.traits) != (self.schedule is not None):
            raise ValueError(f"{self.name}: the trait 'scheduled' and schedule= need each other")
