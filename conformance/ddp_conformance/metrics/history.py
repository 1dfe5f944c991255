"""What one process reports for the samples of all ranks."""

from __future__ import annotations

from dataclasses import dataclass

from ddp_conformance.framework.history import Record


@dataclass(frozen=True, slots=True)
class Expected(Record):
    """What a single process reports for the samples of all ranks."""

    stage: str
    """Name of the report; the ranks' reports have the same name."""
    values: tuple[float, ...]
    """Computed in float64."""
