"""What crosses between the pytest process and the ranks of a world, as JSON-able records."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class TensorPlace(NamedTuple):
    """One tensor of one comparison."""

    name: str
    """What ``assert_close`` was given."""
    number: int
    """How often the name was used before."""
    tensor: str
    """The tensor's name in the value; empty for a value that is not in a dict."""


class Deviation(NamedTuple):
    """How far a tensor is from the reference's."""

    error: float
    """The largest absolute difference; infinite where one is NaN and the other is not."""
    largest: float
    """The reference's largest absolute value."""
    eps: float
    """The eps of the tensor's dtype."""


Table = Mapping[TensorPlace, Deviation]


@dataclass(frozen=True, slots=True)
class WorldRun:
    """What a rank does in a run of a test with worlds."""

    name: str
    """The name of the run, for its files."""
    world: str
    reference: str
    """The world that is the reference."""
    folder: str
    """The folder of this test's files."""
    records: str = ""
    """The subfolder into which this run writes its values; empty if it compares them instead."""
    compares: str = "reference"
    """The subfolder with the values with which this run compares its own."""
    seed: int | None = None
    """The seed of the random numbers of a run with rounding."""
    scale: float = 16.0
    """The factor by which rounding is enlarged in a run with rounding."""
    is_wide: bool = False
    """Whether the default dtype is float64."""
    only_measures: bool = False
    """Whether what a user asks for exactly, or with limits, is left out, and ranks may differ."""
    failures: list[tuple[str, int, str]] = field(default_factory=list)
    """Comparisons that fail, by name and number, with the text: for the run that is shown."""

    def as_json(self) -> dict[str, Any]:
        """The run as JSON, for :meth:`from_json`."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> WorldRun:
        """Return the run that :meth:`as_json` has turned into ``data``."""
        failures = [(name, number, text) for name, number, text in data["failures"]]
        return cls(**{**data, "failures": failures})


@dataclass(frozen=True, slots=True)
class RankTable:
    """What one rank has measured in a run."""

    table: dict[TensorPlace, Deviation]
    disturbed: dict[tuple[str, int], int]
    """How many operators were disturbed before each comparison."""
    chancy: list[str]
    """Modules in training mode with dropout or batch statistics."""
    dtypes: list[str]
    """The dtypes of the floating-point tensors that were compared."""
    devices: list[str]
    """Types of these tensors' devices."""

    def as_json(self) -> dict[str, Any]:
        """The table as JSON, for :meth:`from_json`; with lists, as JSON has no tuples for keys."""
        return {
            "table": [[*place, *distance] for place, distance in self.table.items()],
            "disturbed": [[*key, count] for key, count in self.disturbed.items()],
            "chancy": self.chancy,
            "dtypes": self.dtypes,
            "devices": self.devices,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RankTable:
        """Return the table that :meth:`as_json` has turned into ``data``."""
        return cls(
            {TensorPlace(*row[:3]): Deviation(*row[3:]) for row in data["table"]},
            {(name, number): count for name, number, count in data["disturbed"]},
            data["chancy"],
            data["dtypes"],
            data["devices"],
        )
