"""WRT-01, heard by an audit hook, and WRT-02: files that others see too early, or half."""

from __future__ import annotations

import json
import os
import sqlite3
import tempfile
import threading
from contextlib import closing
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import filelock
import torch
import torch.distributed as dist

from ddp_conformance.framework.case import Case
from ddp_conformance.framework.mutants import BenignVariant, Mutant
from ddp_conformance.writing.mutants.writers import LOG, BarrierForAll, Log, lines
from ddp_conformance.writing.subjects import Writer

STATE = "state.json"
DATABASE = "log.db"

# ------------------------------------------------------------- WRT-01: who opens what


class AtPathOfRankZero:
    """Writes to a path that rank 0 broadcasts: with a folder for each rank, all use the first."""

    def __init__(self, case: Case) -> None:
        self.case = case
        path = [case.directory]
        dist.broadcast_object_list(path, src=0)
        self.directory: Path = path[0]

    def __call__(self, number: int) -> None:
        """Every rank replaces the whole file with one content: reading back shows nothing."""
        (self.directory / STATE).write_text(json.dumps({"number": number}), encoding="utf-8")


class RowOnEveryRank(AtPathOfRankZero):
    """A database that keeps the last row of each number, of any rank."""

    def __call__(self, number: int) -> None:
        with closing(sqlite3.connect(self.directory / DATABASE, timeout=30)) as rows, rows:
            self.write(rows, number)

    def write(self, rows: sqlite3.Connection, number: int) -> None:
        """Every rank inserts or replaces."""
        rows.execute("CREATE TABLE IF NOT EXISTS log (number INTEGER PRIMARY KEY)")
        rows.execute("INSERT OR REPLACE INTO log VALUES (?)", (number,))


class RowOfRankZero(RowOnEveryRank):
    """All ranks connect and make sure that the table is there; one inserts, all read."""

    def write(self, rows: sqlite3.Connection, number: int) -> None:
        rows.execute("CREATE TABLE IF NOT EXISTS log (number INTEGER PRIMARY KEY)")
        if self.case.rank == 0:
            rows.execute("INSERT OR REPLACE INTO log VALUES (?)", (number,))
        rows.execute("SELECT count(*) FROM log").fetchone()


class LogWithLock(Log):
    """Every rank takes the lock, in a file that stays empty, and one of them writes."""

    def __call__(self, number: int) -> None:
        with filelock.FileLock(self.path.with_suffix(".lock")):
            super().__call__(number)


# ------------------------------------------------------------- WRT-02: when others see it


class Publisher:
    """Correct: write beside, rename, and only then let the others go on."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.path = case.directory / STATE

    def __call__(self, number: int) -> None:
        if self.case.rank == 0:
            self.write(number)
        dist.barrier()

    def write(self, number: int) -> None:
        """Publish one state."""
        beside = self.path.with_suffix(".tmp")
        beside.write_text(json.dumps({"number": number}), encoding="utf-8")
        beside.replace(self.path)


def state(directory: Path) -> list[int]:
    """The published number."""
    return [json.loads((directory / STATE).read_text(encoding="utf-8"))["number"]]


class WritesInPlace(Publisher):
    """The barrier is right; a reader of the last state sees an empty file all the same."""

    def write(self, number: int) -> None:
        self.path.write_text(json.dumps({"number": number}), encoding="utf-8")


class RenamesTooEarly(Publisher):
    """Renamed while the text is still in the buffer."""

    def write(self, number: int) -> None:
        beside = self.path.with_suffix(".tmp")
        with beside.open("w", encoding="utf-8") as stream:
            json.dump({"number": number}, stream)
            beside.replace(self.path)


class SavesInPlace(Publisher):
    """``torch.save`` to the path that others load."""

    def write(self, number: int) -> None:
        torch.save({"number": number}, self.path)


def saved(directory: Path) -> list[int]:
    """The saved number."""
    if not (directory / STATE).exists():
        return []
    return [torch.load(directory / STATE)["number"]]


class NobodyWaits(Publisher):
    """Complete before it is visible, and read before it is there."""

    def __call__(self, number: int) -> None:
        if self.case.rank == 0:
            self.write(number)


class WaitsBefore(Publisher):
    """The barrier on the wrong side."""

    def __call__(self, number: int) -> None:
        dist.barrier()
        if self.case.rank == 0:
            self.write(number)


class TellsPath(Publisher):
    """The others wait for the path, which rank 0 sends when the file is there."""

    def __call__(self, number: int) -> None:
        if self.case.rank == 0:
            self.write(number)
        path: list[Any] = [str(self.path)]
        dist.broadcast_object_list(path, src=0)


class OneNameForAll(Publisher):
    """Every rank writes beside, to one name: the second one finds nothing to rename."""

    def __call__(self, number: int) -> None:
        self.write(number)
        dist.barrier()


class NamesOfItsOwn(Publisher):
    """Written to a temporary file with a unique name, and renamed."""

    def write(self, number: int) -> None:
        descriptor, beside = tempfile.mkstemp(dir=self.path.parent)
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            json.dump({"number": number}, stream)
        os.replace(beside, self.path)


class PublishesMeanwhile(Publisher):
    """A thread writes beside and renames, and the others go on at once."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.thread = threading.Thread()

    def write(self, number: int) -> None:
        self.close()
        self.thread = threading.Thread(target=super().write, args=(number,))
        self.thread.start()

    def close(self) -> None:
        """Wait for what was written last."""
        if self.thread.ident is not None:
            self.thread.join()


class PublishesInThread(PublishesMeanwhile):
    """The same, which waits for its thread before the others go on."""

    def write(self, number: int) -> None:
        super().write(number)
        self.close()


class WaitsForItsThreadForAWhile(PublishesMeanwhile):
    """A publisher that waits as long as the file takes on a disk of one's own."""

    def write(self, number: int) -> None:
        super().write(number)
        self.thread.join(timeout=0.05)


class PublishesByChild(Publisher):
    """A forked process writes beside and renames, and the others go on at once."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.child: BaseProcess | None = None

    def write(self, number: int) -> None:
        self.close()
        self.child = get_context("fork").Process(target=super().write, args=(number,))
        self.child.start()

    def close(self) -> None:
        """Wait for what was written last."""
        if self.child is not None:
            self.child.join()


class WaitsForItsChild(PublishesByChild):
    """The same, which waits for its child before the others go on."""

    def write(self, number: int) -> None:
        super().write(number)
        self.close()


class WritesInPlaceInThread(PublishesInThread):
    """A thread that is waited for, and writes to the path that others read."""

    def __call__(self, number: int) -> None:
        if self.case.rank == 0:
            thread = threading.Thread(target=WritesInPlace.write, args=(self, number))
            thread.start()
            thread.join()
        dist.barrier()


PUBLISHED = frozenset({"published", "replaces"})


def published(make: Any, name: str = "") -> Writer:
    """A subject whose state all ranks read."""
    return Writer(make, PUBLISHED, name, records=state)


def closed(make: type[PublishesMeanwhile | PublishesByChild]) -> Writer:
    """One that waits for what it has begun when it is closed."""
    return Writer(make, PUBLISHED, records=state, close=make.close)


TWO_AND_THREE = (2, 3)
"""A fourth rank is held back like the third, and takes its time."""

MUTANTS = (
    Mutant(Writer(AtPathOfRankZero), "WRT-01", "one content to one path on every rank"),
    Mutant(Writer(RowOnEveryRank), "WRT-01", "a row on every rank", TWO_AND_THREE),
    Mutant(published(WritesInPlace), "WRT-02", "written in place", TWO_AND_THREE),
    Mutant(published(RenamesTooEarly), "WRT-02", "renamed before it is complete", TWO_AND_THREE),
    Mutant(
        Writer(SavesInPlace, PUBLISHED, records=saved),
        "WRT-02",
        "torch.save in place",
        TWO_AND_THREE,
    ),
    Mutant(published(NobodyWaits), "WRT-02", "no rank waits"),
    Mutant(published(WaitsBefore), "WRT-02", "barrier before the write"),
    Mutant(published(OneNameForAll), "WRT-02", "one temporary name for all ranks"),
    Mutant(closed(PublishesMeanwhile), "WRT-02", "a thread writes, and no rank waits for it"),
    Mutant(
        closed(WaitsForItsThreadForAWhile), "WRT-02", "a thread writes, which is waited for 50 ms"
    ),
    Mutant(closed(PublishesByChild), "WRT-02", "a forked process writes, and no rank waits for it"),
    Mutant(
        published(WritesInPlaceInThread), "WRT-02", "written in place in a thread", TWO_AND_THREE
    ),
)

BENIGN_VARIANTS = (
    BenignVariant(Writer(RowOfRankZero), "all ranks connect to the database, one inserts"),
    BenignVariant(Writer(LogWithLock, records=lines), "a lock that all ranks take"),
    BenignVariant(published(Publisher), "written beside, renamed, barrier"),
    BenignVariant(published(NamesOfItsOwn), "written to a name of its own, renamed, barrier"),
    BenignVariant(closed(PublishesInThread), "a thread writes, waited for, barrier"),
    BenignVariant(closed(WaitsForItsChild), "a forked process writes, waited for, barrier"),
    BenignVariant(published(TellsPath), "written beside, renamed, path broadcast"),
    BenignVariant(
        Writer(BarrierForAll, frozenset({"published"}), f"appended_{LOG}", records=lines),
        "a line appended whole, and a barrier",
    ),
)
