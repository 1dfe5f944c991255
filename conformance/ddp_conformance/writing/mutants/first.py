"""WRT-01: writers in which whichever rank is first writes, and the others find its file."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager as Context
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import filelock
import torch
import torch.distributed as dist

from ddp_conformance.framework.case import Case
from ddp_conformance.framework.mutants import BenignVariant, Mutant
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


class ByOpening(UnlessThere):
    """``open("x")`` succeeds on one rank, and is refused to the others."""

    def __call__(self, number: int) -> None:
        with suppress(FileExistsError):
            self.make(self.case.directory / f"{number}.json", number)

    def make(self, path: Path, number: int) -> None:
        """Make a file that is not there."""
        with path.open("x", encoding="utf-8") as file:
            json.dump(number, file)


class ByLinking(ByOpening):
    """A file of each rank's own is linked to the name that others know."""

    def make(self, path: Path, number: int) -> None:
        own = path.with_name(f"{number}.rank{self.case.rank}")
        own.write_text(json.dumps(number), encoding="utf-8")
        try:
            path.hardlink_to(own)
        finally:
            own.unlink()


class ByMoving(ByOpening):
    """Rank 0 offers a file for each record, and one rank takes it."""

    def __call__(self, number: int) -> None:
        offer = self.case.directory / f"{number}.offer"
        done = self.case.directory / f"{number}.json"
        if self.case.rank == 0 and not done.exists():
            offer.write_text(json.dumps(number), encoding="utf-8")
        if dist.is_initialized():
            dist.barrier()
        with suppress(FileNotFoundError):
            offer.rename(done)


class OpensAndWritesAgain(ByOpening):
    """A writer that, where ``open("x")`` is refused, writes over the file."""

    def __call__(self, number: int) -> None:
        path = self.case.directory / f"{number}.json"
        try:
            self.make(path, number)
        except FileExistsError:
            self.write(path, number)


class MovesItsOwn(UnlessThere):
    """Each rank moves a file of its own to the name; the last one stays."""

    def write(self, path: Path, number: int) -> None:
        own = path.with_name(f"{number}.rank{self.case.rank}")
        own.write_text(json.dumps(number), encoding="utf-8")
        own.rename(path)


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
    """The numbers of the files in a folder, in the order of their names."""
    return [int(path.stem) for path in sorted(directory.glob("*.json"))]


def first(make: type[UnlessThere]) -> Writer:
    """A writer that declares ``first_wins``."""
    return Writer(make, frozenset({"first_wins"}), records=numbers)


MUTANTS = (
    Mutant(first(UnlessThere), "WRT-01", "exists(), then written, on all ranks at once"),
    Mutant(first(SavedUnlessThere), "WRT-01", "exists(), then torch.save, on all ranks at once"),
    Mutant(first(LocksAndWritesAgain), "WRT-01", "locked, and written by each rank in turn"),
    Mutant(first(OpensAndWritesAgain), "WRT-01", 'refused by open("x"), writes over it'),
    Mutant(first(MovesItsOwn), "WRT-01", "exists(), then a file moved there by all ranks"),
    Mutant(first(StampsAfterwards), "WRT-01", "rank 0 first, and then all again"),
)

BENIGN_VARIANTS = (
    BenignVariant(first(BehindALock), "if it is not there, behind a lock"),
    BenignVariant(first(SavedBehindALock), "torch.save if it is not there, behind a lock"),
    BenignVariant(first(ByOpening), 'open("x"), which one rank may'),
    BenignVariant(first(ByLinking), "a link to a file of its own, which one rank may make"),
    BenignVariant(first(ByMoving), "one file that all ranks try to move", (2, 4)),
    BenignVariant(first(MainProcessFirst), "if it is not there, rank 0 first"),
)
