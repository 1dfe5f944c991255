"""The archive on disk: one compressed NumPy file for each time bin, one folder for each day.

::

    ROOT/2024/01/31/bin_20240131T0600.npz

The folder tree is the index. A window is found by visiting its own days only, so the
cost follows the window and not the archive.
"""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ddp_reference.windows.window import DateLike, DateWindow

_NAME = re.compile(r"bin_(\d{8}T\d{4})\.npz")
_TIME = "%Y%m%dT%H%M"
_ARRAYS = ("x", "edge_index", "y")
_MAKE = "make one with: python -m ddp_reference.windows.make_data DIR --days N"


class ArchiveError(ValueError):
    """The archive lacks something or holds something unreadable; the text names the path."""


@dataclass(frozen=True)
class BinFile:
    """One time bin of the archive."""

    name: str
    """``bin_20240131T0600``; unique in the archive."""
    time: datetime
    """Start of the bin, naive UTC."""
    path: Path
    """The file that holds the bin."""


@dataclass(frozen=True)
class BinArrays:
    """The graph of one bin, as it lies in the file."""

    x: npt.NDArray[np.float32]
    """Node features, shape (nodes, features)."""
    edge_index: npt.NDArray[np.int64]
    """Directed edges as node numbers, shape (2, edges)."""
    y: npt.NDArray[np.float32]
    """Target of the whole graph, shape (1,)."""


def bin_path(root: Path, time: datetime) -> Path:
    """The path under ``root`` of the bin that starts at ``time``."""
    return root / f"{time:%Y}" / f"{time:%m}" / f"{time:%d}" / f"bin_{time.strftime(_TIME)}.npz"


def write_bin(root: Path, time: datetime, arrays: BinArrays) -> None:
    """Store one bin; a reader sees the whole file or none."""
    path = bin_path(root, time)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    with part.open("wb") as file:
        np.savez_compressed(file, x=arrays.x, edge_index=arrays.edge_index, y=arrays.y)
    part.replace(path)


def read_bin(path: Path) -> BinArrays:
    """Load one bin. Opened and closed here: no handle is shared across a fork.

    Raises:
        ArchiveError: missing, damaged, or without one of the arrays x, edge_index, y.
    """
    try:
        # Opened and looked at first: of a damaged file NumPy leaks the handle that it opened
        # itself, and its advice is to unpickle it.
        if not zipfile.is_zipfile(path):
            raise zipfile.BadZipFile("it is damaged or missing")
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            x, edge_index, y = (stored[key] for key in _ARRAYS)
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ArchiveError(f"cannot read {path}: {error}; remove or replace this bin") from error
    if x.ndim != 2 or edge_index.shape[:1] != (2,) or y.shape != (1,):
        raise ArchiveError(
            f"{path} has shapes x{x.shape}, edge_index{edge_index.shape}, y{y.shape}; expected "
            "x(nodes, features), edge_index(2, edges), y(1,)"
        )
    return BinArrays(x, edge_index, y)


def organize_bins_times(root: str | Path, start: DateLike, end: DateLike) -> dict[str, BinFile]:
    """Index the bins that start in ``start <= t < end``: name to file, ordered by time.

    Raises:
        ValueError: dates out of order.
        ArchiveError: no archive at ``root``, a file that is no bin, or no bin in the window.
    """
    root, window = Path(root), DateWindow.of(start, end)
    found = [bin_file for day in _days(window) for bin_file in _bins_of_day(root, day)]
    summary = {b.name: b for b in found if window.contains(b.time)}
    if not summary:
        raise ArchiveError(f"no bin in {window.id}; {root} holds {archive_span(root).id}")
    return summary


def feature_count(root: str | Path) -> int:
    """Number of node features in the archive, read from its first bin.

    Raises:
        ArchiveError: no bin at ``root``, or an unreadable one.
    """
    root = Path(root)
    first = next(_bins_of_day(root, archive_span(root).start.date()))
    return int(read_bin(first.path).x.shape[1])


def archive_span(root: str | Path) -> DateWindow:
    """The days that the archive at ``root`` covers, from the first bin's to the last one's.

    Raises:
        ArchiveError: no such folder, or no bin in it.
    """
    root = Path(root)
    if not root.is_dir():
        raise ArchiveError(f"{root} is no folder; {_MAKE}")
    days = sorted(day for day in map(_day_of_folder, root.glob("*/*/*")) if day is not None)
    first = next((day for day in days if any(_bins_of_day(root, day))), None)
    if first is None:
        raise ArchiveError(f"{root} holds no YYYY/MM/DD/bin_YYYYMMDDTHHMM.npz; {_MAKE}")
    last = next(day for day in reversed(days) if any(_bins_of_day(root, day)))
    return DateWindow.of(first, last + timedelta(days=1))


def _days(window: DateWindow) -> Iterator[date]:
    day = window.start.date()
    while datetime(day.year, day.month, day.day) < window.end:
        yield day
        day += timedelta(days=1)


def _day_of_folder(folder: Path) -> date | None:
    try:
        return datetime.strptime("/".join(folder.parts[-3:]), "%Y/%m/%d").date()
    except ValueError:
        return None


def _bins_of_day(root: Path, day: date) -> Iterator[BinFile]:
    """The day's bins in order of time. Hidden files are writes in progress, no bins."""
    folder = bin_path(root, datetime(day.year, day.month, day.day)).parent
    for path in sorted(folder.glob("[!.]*")):
        time = _time_of(path)
        if time.date() != day:
            raise ArchiveError(f"{path} lies in the folder of {day}; move it to {time:%Y/%m/%d}")
        yield BinFile(path.stem, time, path)


def _time_of(path: Path) -> datetime:
    match = _NAME.fullmatch(path.name)
    if match is None:
        raise ArchiveError(f"{path} is no bin_YYYYMMDDTHHMM.npz; move it out of the archive")
    return datetime.strptime(match[1], _TIME)
