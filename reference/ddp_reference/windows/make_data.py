"""Write a small archive in the real layout: ``python -m ddp_reference.windows.make_data DIR``.

A network of stations measures a field of travelling waves over a slow trend. Stations
drop out now and then, so graphs differ in size, as they do in practice; weights by nodes
and weights by graphs then give different means. The target of a bin is the mean of the
field plus its gradient energy over the edges: a function of the graph that a small
network can learn.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ddp_reference.windows.archive import BinArrays, write_bin
from ddp_reference.windows.window import parse_date

FloatArray = npt.NDArray[np.float64]
_NEIGHBOURS = 3
_MIN_STATIONS = 6
_WAVES = np.array([[3.0, 1.0, 36.0], [1.0, 4.0, 60.0], [2.0, 2.0, 90.0]])
"""The waves, each with cycles along x, cycles along y, period in hours."""


@dataclass(frozen=True)
class ArchivePlan:
    """What to write."""

    start: datetime
    """First bin, naive UTC."""
    days: int
    """Length of the archive."""
    bin_hours: int = 6
    """Distance of two bins; divides 24."""
    stations: int = 20
    """Stations of the network; between half and all of them report in a bin."""
    seed: int = 0
    """Fixes every byte of the archive."""

    def __post_init__(self) -> None:
        if self.days < 1:
            raise ValueError(f"days is {self.days}; at least 1")
        if self.bin_hours < 1 or 24 % self.bin_hours:
            raise ValueError(f"bin_hours is {self.bin_hours}; it must divide 24")
        if self.stations < _MIN_STATIONS:
            raise ValueError(f"stations is {self.stations}; at least {_MIN_STATIONS}")


def make_archive(root: str | Path, plan: ArchivePlan) -> int:
    """Write the archive to the new or empty folder ``root``; return the number of bins.

    Raises:
        ValueError: ``root`` is a file or holds something; archives are never mixed.
    """
    root = Path(root)
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise ValueError(f"{root} is not an empty folder; choose a new one")
    network = np.random.default_rng(plan.seed).random((plan.stations, 2))
    bins = plan.days * 24 // plan.bin_hours
    for number in range(bins):
        hours = number * plan.bin_hours
        rng = np.random.default_rng([plan.seed, number])
        write_bin(root, plan.start + timedelta(hours=hours), observe(network, hours, rng))
    return bins


def observe(network: FloatArray, hours: float, rng: np.random.Generator) -> BinArrays:
    """The graph that the reporting stations of ``network`` (stations, 2) give at ``hours``."""
    count = int(rng.integers(len(network) // 2, len(network) + 1))
    places = network[np.sort(rng.permutation(len(network))[:count])]
    field = _field(places, hours)
    edges = _nearest(places)
    angle = 2 * np.pi * (hours % 24) / 24
    day = np.tile([np.sin(angle), np.cos(angle)], (count, 1))
    x = np.column_stack([field, places, day])
    target = field.mean() + np.square(field[edges[0]] - field[edges[1]]).mean()
    return BinArrays(x.astype(np.float32), edges, np.array([target], dtype=np.float32))


def _field(places: FloatArray, hours: float) -> FloatArray:
    phase = places @ _WAVES[:, :2].T - hours / _WAVES[:, 2]
    trend = 0.5 * np.sin(2 * np.pi * hours / (24 * 30))
    field: FloatArray = np.sin(2 * np.pi * phase).mean(axis=1) + trend
    return field


def _nearest(places: FloatArray) -> npt.NDArray[np.int64]:
    """Edges from each station's nearest neighbours to it, shape (2, edges)."""
    distance = np.linalg.norm(places[:, None] - places[None], axis=2)
    np.fill_diagonal(distance, np.inf)
    near = min(_NEIGHBOURS, len(places) - 1)
    sources = np.argsort(distance, axis=1, kind="stable")[:, :near]
    targets = np.repeat(np.arange(len(places)), near)
    return np.stack([sources.ravel(), targets]).astype(np.int64)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; exit code 2 on wrong arguments."""
    parser = argparse.ArgumentParser(prog="python -m ddp_reference.windows.make_data")
    parser.add_argument("root", type=Path, metavar="DIR", help="new or empty folder")
    parser.add_argument("--days", type=int, required=True, help="length of the archive")
    parser.add_argument("--start", default="2024-01-01", help="first day")
    parser.add_argument("--bin-hours", type=int, default=6, help="hours between bins")
    parser.add_argument("--stations", type=int, default=20, help="size of the network")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    try:
        start = parse_date(args.start)
        plan = ArchivePlan(start, args.days, args.bin_hours, args.stations, args.seed)
        bins = make_archive(args.root, plan)
    except ValueError as error:
        parser.error(str(error))
    print(f"{bins} bins of {args.days} days in {args.root}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
