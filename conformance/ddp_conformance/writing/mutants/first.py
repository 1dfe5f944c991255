"""WRT-01: writers of which whoever comes first writes, and the others find its file."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager as Context
from contextlib import contextmanager, nullcontext
from pathlib import Path

import filelock
import torch
import torch.distributed as dist

from ddp_conformance.frame.case import Case
from ddp_conformance.frame.mutants import Mutant, Twin
from ddp_conformance.writing.subjects import Writer


class UnlessThere:
    """Writes a file for each record, if it is not there."""

    def __init__(self, case: Case) -> None:
        self.case = case

    def __call__(self, number: int) -> None:
        with self.alone():
            path = self.case.directory / f"{number}.json"
            if not path.exists():
                self.write(path, number)

    def alone(self) -> Context[object]:
        """All ranks look at once."""
        return nullcontext()

    def write(self, path: Path, number: int) -> None:
        """Write one file."""
        path.write_text(json.dumps(number), encoding="utf-8")


class SavedUnlessThere(UnlessThere):
    """``torch.save`` opens the file in C++."""

    def write(self, path: Path, number: int) -> None:
        torch.save(number, path)


class BehindALock(UnlessThere):
    """One after the other."""

    def alone(self) -> Context[object]:
        return filelock.FileLock(self.case.directory / "records.lock")


class SavedBehindALock(BehindALock):
    """The same, in C++."""

    write = SavedUnlessThere.write


class MainProcessFirst(UnlessThere):
    """Rank 0 first, as with Accelerate's and transformers' ``main_process_first``."""

    @contextmanager
    def alone(self) -> Iterator[None]:
        if self.case.rank > 0:
            dist.barrier()
        yield
        if self.case.rank == 0:
            dist.barrier()


class LocksAndWritesAgain(BehindALock):
    """The lock without the look: each rank replaces what the one before has written."""

    def __call__(self, number: int) -> None:
        with self.alone():
            self.write(self.case.directory / f"{number}.json", number)


class StampsAfterwards(MainProcessFirst):
    """The file is there, and every rank touches it."""

    def __call__(self, number: int) -> None:
        super().__call__(number)
        with self.alone():
            (self.case.directory / f"{number}.json").write_text(str(time.time_ns()))


def numbers(directory: Path) -> list[int]:
    """Of the files in a folder, in the order of their names."""
    return [int(path.stem) for path in sorted(directory.glob("*.json"))]


def first(make: type[UnlessThere]) -> Writer:
    """A writer that says so."""
    return Writer(make, frozenset({"first_wins"}), records=numbers)


MUTANTS = (
    Mutant(first(UnlessThere), "WRT-01", "exists(), then written, on all ranks at once"),
    Mutant(first(SavedUnlessThere), "WRT-01", "exists(), then torch.save, on all ranks at once"),
    Mutant(first(LocksAndWritesAgain), "WRT-01", "locked, and written by each rank in turn"),
    Mutant(first(StampsAfterwards), "WRT-01", "rank 0 first, and then all again"),
)

TWINS = (
    Twin(first(BehindALock), "if it is not there, behind a lock"),
    Twin(first(SavedBehindALock), "torch.save if it is not there, behind a lock"),
    Twin(first(MainProcessFirst), "if it is not there, rank 0 first"),
)
