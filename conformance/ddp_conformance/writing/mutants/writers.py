"""WRT-01, WRT-03 and WRT-04: writers with the defects that logging code has in the wild."""

from __future__ import annotations

import json
import os
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from time import time as clock
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_reduce

from ddp_conformance.framework.case import Case
from ddp_conformance.framework.mutants import BenignVariant, Mutant
from ddp_conformance.writing.subjects import Writer

LOG = "log.jsonl"


class Log:
    """Appends a line of JSON for each record, on rank 0."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.path = case.directory / LOG

    def __call__(self, number: int) -> None:
        if self.case.rank == 0:
            self.append(number)

    def append(self, number: int) -> None:
        """Write one line, on the rank that calls."""
        with self.path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({"number": number, "rank": self.case.rank}) + "\n")


def lines(directory: Path) -> list[Any]:
    """The numbers of all records below a folder."""
    return [
        json.loads(line)["number"]
        for path in sorted(directory.rglob(LOG))
        for line in path.read_text(encoding="utf-8").splitlines()
    ]


def path_of(log: Log) -> tuple[Path, ...]:
    """Where it writes."""
    return (log.path,)


class LogOnEveryRank(Log):
    """No guard: every record stands there once for each rank."""

    def __call__(self, number: int) -> None:
        self.append(number)


class LogOnFirstLocalRank(Log):
    """The first rank of each machine, all of which see one folder."""

    def __call__(self, number: int) -> None:
        if os.environ["LOCAL_RANK"] == "0":
            self.append(number)


class LogWhenClosed(Log):
    """Keeps its records until it is closed."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.kept: list[int] = []

    def append(self, number: int) -> None:
        self.kept.append(number)

    def close(self) -> None:
        """Write all of them."""
        for number in self.kept:
            super().append(number)


def close(log: LogWhenClosed) -> None:
    """Whichever it is."""
    log.close()


def close_and_end(log: LogWhenClosed) -> None:
    """The last line of a program."""
    log.close()
    dist.destroy_process_group()


class LogOfAllWhenClosed(LogWhenClosed):
    """Every rank keeps its records, and writes them when it is closed."""

    def __call__(self, number: int) -> None:
        self.append(number)


class ReducesWhenClosed(LogWhenClosed):
    """What has records reduces something at last."""

    def close(self) -> None:
        if self.kept:
            dist.all_reduce(torch.ones(1))
        super().close()


class LogTwice(Log):
    """Two hooks of one callback, both of which write."""

    def __call__(self, number: int) -> None:
        super().__call__(number)
        super().__call__(number)


class MarksOnEveryRank(Log):
    """One rank writes, and every rank marks that it is done, by one file that stays empty."""

    def __call__(self, number: int) -> None:
        super().__call__(number)
        self.path.with_suffix(".done").touch()


class LinksOnEveryRank(Log):
    """The name of the latest file, moved by every rank."""

    def __call__(self, number: int) -> None:
        super().__call__(number)
        beside = self.path.with_name(f"latest.{self.case.rank}")
        beside.symlink_to(LOG)
        beside.replace(self.path.with_name("latest"))


class LooksBeforeMaking(Log):
    """A folder that every rank finds missing, and that only the first one can make."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.path = case.directory / "runs" / "first" / LOG
        self.make_folder()

    def make_folder(self) -> None:
        """Make the folder on every rank."""
        if not self.path.parent.exists():
            os.makedirs(self.path.parent)


class MakesFolderOnEveryRank(LooksBeforeMaking):
    """The same, but a folder that exists already is accepted."""

    def make_folder(self) -> None:
        os.makedirs(self.path.parent, exist_ok=True)


class MakesFolderBeforeOthersLook(LooksBeforeMaking):
    """One rank makes it, and the others look when it has."""

    def make_folder(self) -> None:
        if self.case.rank == 0:
            super().make_folder()
        dist.barrier()
        super().make_folder()


class RemovesWhatIsThere(Log):
    """A file of one rank that every rank removes, if it is there."""

    missing_ok = False

    def __call__(self, number: int) -> None:
        super().__call__(number)
        part = self.path.with_suffix(".part")
        if self.case.rank == 0:
            part.touch()
        dist.barrier()
        if part.exists():
            part.unlink(missing_ok=self.missing_ok)


class MovesWhatIsThere(Log):
    """All logs but the last are moved out of the way, by every rank."""

    def __call__(self, number: int) -> None:
        if self.case.rank == 0:
            (self.case.directory / f"state.{number}").touch()
        super().__call__(number)
        dist.barrier()
        for old in sorted(self.case.directory.glob("state.*"))[:-1]:
            self.move(old)
        dist.barrier()

    def move(self, old: Path) -> None:
        """Move the file on every rank."""
        old.rename(old.with_name(f"old.{old.name}"))


class MovesOnOneRank(MovesWhatIsThere):
    """The same, by one rank."""

    def move(self, old: Path) -> None:
        if self.case.rank == 0:
            super().move(old)


class RemovesAfterMoving(RemovesWhatIsThere):
    """The same, on a rank that has files of its own to put in their place before."""

    def __call__(self, number: int) -> None:
        if self.case.rank == 0:
            for name in ("config", "version"):
                beside = self.path.with_name(f"{name}.tmp")
                beside.touch()
                beside.replace(self.path.with_name(name))
        super().__call__(number)


class RemovesWhatMayBeGone(RemovesWhatIsThere):
    """The same, content with a file that is gone by then."""

    missing_ok = True

    def __call__(self, number: int) -> None:
        super().__call__(number)
        dist.barrier()


class SaveOnEveryRank(Log):
    """``torch.save`` to one path on all ranks: the last one wins, if no rank reads in between."""

    def __call__(self, number: int) -> None:
        torch.save({"number": number}, self.case.directory / "last.pt")


class LogByTime(Log):
    """A folder named by the clock, which every rank reads for itself."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.path = self.folder(case) / LOG
        self.path.parent.mkdir(exist_ok=True)

    def folder(self, case: Case) -> Path:
        """The folder of this run, on this rank."""
        return case.directory / f"run-{case.rank}-{time.time_ns()}"


class LogByTimeOfRankZero(LogByTime):
    """The same folder, named by rank 0 for all."""

    def folder(self, case: Case) -> Path:
        name = [f"run-{time.time_ns()}"]
        dist.broadcast_object_list(name, src=0)
        return case.directory / name[0]


class LogBySecond(LogByTime):
    """A folder named by the second, which is the same one for ranks that start together."""

    def folder(self, case: Case) -> Path:
        return case.directory / time.strftime("run-%Y%m%d-%H%M%S")


class LogByHour(LogByTime):
    """The same by the hour, of a clock that was imported by its name."""

    def folder(self, case: Case) -> Path:
        return case.directory / f"run-{datetime.now(UTC):%Y%m%d-%H}"


class LogByHourOfRankZero(LogByHour):
    """The same, named by rank 0 for all; how long it takes is each rank's own matter."""

    def folder(self, case: Case) -> Path:
        began = clock()
        name = [super().folder(case).name]
        dist.broadcast_object_list(name, src=0)
        assert clock() - began < 3600
        return case.directory / name[0]


class LogByHash(LogByTime):
    """A folder named by the hash of what is trained."""

    def folder(self, case: Case) -> Path:
        return case.directory / f"run-{hash('resnet50, rate 0.1') & 0xFFFFFF:06x}"


class LogByHashOfRankZero(LogByHash):
    """The same, named by rank 0 for all."""

    def folder(self, case: Case) -> Path:
        name = [super().folder(case).name]
        dist.broadcast_object_list(name, src=0)
        return case.directory / name[0]


class LogByChecksum(LogByTime):
    """A folder named by a hash that is the same in every process."""

    def folder(self, case: Case) -> Path:
        return case.directory / f"run-{zlib.crc32(b'resnet50, rate 0.1'):08x}"


class LogByProcess(LogByTime):
    """A folder named by the number of the rank's process."""

    def folder(self, case: Case) -> Path:
        return case.directory / f"run-{os.getpid()}"


class LogByParent(LogByTime):
    """A folder named by the number of the parent, which a machine's ranks under torchrun share."""

    def folder(self, case: Case) -> Path:
        return case.directory / f"run-{os.getppid()}"


class LogInNextFolder(Log):
    """A folder with the first number that is free when the rank first needs one."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.number: int | None = None

    def append(self, number: int) -> None:
        self.path = self.folder() / LOG
        self.path.parent.mkdir(exist_ok=True)
        super().append(number)

    def folder(self) -> Path:
        """The folder of this rank."""
        if self.number is None:
            self.number = len(list(self.case.directory.glob("version-*")))
        return self.case.directory / f"version-{self.number}"


class LogInNextFolderOfRankZero(LogInNextFolder):
    """The same, but the reported folder is rank 0's."""

    def shared_folder(self) -> Path:
        """Rank 0's folder; a collective of all ranks."""
        name = [self.folder().name]
        dist.broadcast_object_list(name, src=0)
        return self.case.directory / name[0]


class CountsFoldersFirst(LogInNextFolder):
    """The same, counted when the log is made, which is when rank 0 has written on a late rank."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.folder()


class CountsFoldersTogether(LogInNextFolderOfRankZero):
    """Rank 0 counts for all when the log is made."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.shared_folder()


def own_folder(log: LogInNextFolder) -> tuple[Path, ...]:
    """Looked for by each rank."""
    return (log.folder(),)


def told_folder(log: LogInNextFolderOfRankZero) -> tuple[Path, ...]:
    """Looked for by rank 0."""
    return (log.shared_folder(),)


class TellsBeforeItExists(Log):
    """The path of a best checkpoint that no rank has saved."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.best = case.directory / "best.ckpt"


def best_of(log: TellsBeforeItExists) -> tuple[Path, ...]:
    """The path that the writer reports."""
    return (log.best,)


class BarrierUnderGuard(Log):
    """``rank_zero_only`` around a function that waits for the others."""

    def append(self, number: int) -> None:
        super().append(number)
        dist.barrier()


class BarrierIfMissing(Log):
    """Who finds the record there does not wait for the others, who do."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.waits_always = False

    def __call__(self, number: int) -> None:
        done = self.path.with_name(f"done.{number}")
        missing = not done.exists()
        if missing and self.case.rank == 0:
            self.append(number)
            done.touch()
        if missing or self.waits_always:
            dist.barrier()


class BarrierThatAllKeep(BarrierIfMissing):
    """Whether or not it is there."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.waits_always = True


class BarrierIfMissingLater(BarrierIfMissing):
    """All ranks meet before they look."""

    def __call__(self, number: int) -> None:
        dist.barrier()
        super().__call__(number)


class BarrierForAll(Log):
    """Written on one rank, waited for on all."""

    def __call__(self, number: int) -> None:
        super().__call__(number)
        dist.barrier()


class GathersUnderGuard(Log):
    """Fetches what all ranks have, on the rank that writes it."""

    def append(self, number: int) -> None:
        total = torch.tensor(float(number))
        dist.all_reduce(total)
        super().append(number)


@contextmanager
def group_of(ranks: Sequence[int], local: bool = False) -> Iterator[dist.ProcessGroup]:
    """A group that is there in the block; all ranks enter it, or with ``local`` the members."""
    group = dist.new_group(list(ranks), use_local_synchronization=local)
    try:
        yield group
    finally:
        dist.destroy_process_group(group)


class ReducesFunctionallyUnderGuard(Log):
    """The same by a functional collective, which C++ issues."""

    def append(self, number: int) -> None:
        group: Any = dist.group.WORLD
        total = all_reduce(torch.tensor(float(number)), "sum", group)
        super().append(int(total))


class NewGroupUnderGuard(Log):
    """A group for the one rank that writes, made on it alone: all ranks must call it."""

    def append(self, number: int) -> None:
        with group_of([0]):
            super().append(number)


class NewGroupForAll(Log):
    """The same group, made on all ranks, and used on its one rank; then one it may make alone."""

    def __call__(self, number: int) -> None:
        with group_of([0]) as self.alone:
            super().__call__(number)

    def append(self, number: int) -> None:
        dist.barrier(group=self.alone)
        with group_of([0], local=True) as alone:
            dist.barrier(group=alone)
        super().append(number)


class FirstRanksMeet(Log):
    """A group of the first two ranks, which let one another through, and no others."""

    def __call__(self, number: int) -> None:
        first = range(min(2, self.case.world_size))
        with group_of(first) as group:
            if self.case.rank in first:
                # gloo connects in the background: a rank that destroys the group before its peer
                # has connected makes the peer fail, which is another defect.
                dist.barrier(group=group)
            if self.case.rank in first and self.comes():
                dist.barrier(group=group)
        super().__call__(number)

    def comes(self) -> bool:
        """Whether this one of the two calls the barrier."""
        return True


class FirstRanksMeetUnderGuard(FirstRanksMeet):
    """The same barrier, where only one of the two comes."""

    def comes(self) -> bool:
        return self.case.rank == 0


class CountsSamples(Log):
    """Fetches how many samples all ranks have, on all ranks, before one of them writes."""

    def __call__(self, number: int) -> None:
        total = torch.tensor(float(len(self.own)))
        dist.all_reduce(total)
        super().__call__(number)

    @property
    def own(self) -> range:
        """This rank's samples: with fewer than ranks, some have none."""
        return range(self.case.rank, self.case.size, self.case.world_size)


class CountsWhereSamplesAre(CountsSamples):
    """A rank without samples has nothing to log, and leaves the reduction out."""

    def __call__(self, number: int) -> None:
        if self.own:
            super().__call__(number)


TELLS = frozenset({"tells_paths"})

MUTANTS = (
    Mutant(Writer(LogOnEveryRank, records=lines), "WRT-01", "append on every rank"),
    Mutant(Writer(LogOnFirstLocalRank, records=lines), "WRT-01", "LOCAL_RANK on several machines"),
    Mutant(Writer(LogTwice, records=lines), "WRT-01", "each record twice"),
    Mutant(
        Writer(LogOfAllWhenClosed, records=lines, close=close),
        "WRT-01",
        "every rank writes when it is closed",
    ),
    Mutant(Writer(SaveOnEveryRank), "WRT-01", "torch.save on every rank"),
    Mutant(Writer(MarksOnEveryRank, records=lines), "WRT-01", "empty mark on every rank"),
    Mutant(Writer(LinksOnEveryRank, records=lines), "WRT-01", "link on every rank"),
    Mutant(Writer(LooksBeforeMaking, records=lines), "WRT-01", "exists(), then mkdir"),
    Mutant(Writer(RemovesWhatIsThere, records=lines), "WRT-01", "exists(), then unlink"),
    Mutant(Writer(MovesWhatIsThere, records=lines), "WRT-01", "glob(), then rename"),
    Mutant(
        Writer(RemovesAfterMoving, records=lines), "WRT-01", "exists(), then unlink, one rank ahead"
    ),
    Mutant(Writer(LogByTime, TELLS, records=lines, paths=path_of), "WRT-03", "clock"),
    Mutant(
        Writer(LogBySecond, TELLS, records=lines, paths=path_of), "WRT-03", "seconds of the clock"
    ),
    Mutant(
        Writer(LogByHour, TELLS, records=lines, paths=path_of),
        "WRT-03",
        "the hour, imported by name",
    ),
    Mutant(
        Writer(LogByProcess, TELLS, records=lines, paths=path_of),
        "WRT-03",
        "getpid() in a name",
        (2,),
    ),
    Mutant(Writer(LogByHash, TELLS, records=lines, paths=path_of), "WRT-03", "hash() of a name"),
    Mutant(
        Writer(LogInNextFolder, TELLS, records=lines, paths=own_folder),
        "WRT-03",
        "first free number, looked for by each rank",
    ),
    Mutant(
        Writer(CountsFoldersFirst, TELLS, records=lines, paths=own_folder),
        "WRT-03",
        "first free number, looked for by a late rank",
    ),
    Mutant(Writer(TellsBeforeItExists, TELLS, paths=best_of), "WRT-03", "path never made"),
    Mutant(Writer(BarrierUnderGuard, records=lines), "WRT-04", "barrier under a guard"),
    Mutant(Writer(GathersUnderGuard, records=lines), "WRT-04", "reduction under a guard"),
    Mutant(
        Writer(ReducesFunctionallyUnderGuard, records=lines),
        "WRT-04",
        "functional collective under a guard",
    ),
    Mutant(Writer(NewGroupUnderGuard, records=lines), "WRT-04", "new_group under a guard"),
    Mutant(Writer(BarrierIfMissing, records=lines), "WRT-04", "barrier if a file is missing"),
    Mutant(
        Writer(BarrierIfMissingLater, records=lines),
        "WRT-04",
        "barrier if a file is missing, after one for all",
    ),
    Mutant(
        Writer(FirstRanksMeetUnderGuard, records=lines),
        "WRT-04",
        "one of a group's two ranks at its barrier",
    ),
    Mutant(
        Writer(ReducesWhenClosed, records=lines, close=close),
        "WRT-04",
        "reduction when it is closed, under a guard",
    ),
    Mutant(
        Writer(CountsWhereSamplesAre, records=lines),
        "WRT-04",
        "empty rank leaves out the reduction",
    ),
)

BENIGN_VARIANTS = (
    BenignVariant(Writer(Log, TELLS, records=lines, paths=path_of), "append on rank 0"),
    BenignVariant(
        Writer(LogWhenClosed, TELLS, records=lines, paths=path_of, close=close),
        "written when it is closed",
    ),
    BenignVariant(
        Writer(
            LogWhenClosed, TELLS, "LogThatEnds", records=lines, paths=path_of, close=close_and_end
        ),
        "closed with the process group",
        (2,),
    ),
    BenignVariant(
        Writer(LogByTimeOfRankZero, TELLS, records=lines, paths=path_of),
        "a folder named by the clock of rank 0",
    ),
    BenignVariant(
        Writer(LogByHourOfRankZero, TELLS, records=lines, paths=path_of),
        "the hour of rank 0, and a stopwatch on each rank",
    ),
    BenignVariant(
        Writer(LogByHashOfRankZero, TELLS, records=lines, paths=path_of),
        "hash() of a name on rank 0",
        (2, 3),
    ),
    BenignVariant(
        Writer(LogByParent, TELLS, records=lines, paths=path_of), "getppid() in a name", (2,)
    ),
    BenignVariant(
        Writer(LogByChecksum, TELLS, records=lines, paths=path_of), "crc32 of a name", (2, 3)
    ),
    BenignVariant(
        Writer(LogInNextFolderOfRankZero, TELLS, records=lines, paths=told_folder),
        "the first free number, looked for by rank 0",
    ),
    BenignVariant(
        Writer(CountsFoldersTogether, TELLS, records=lines, paths=told_folder),
        "the first free number, looked for by rank 0 before any rank writes",
    ),
    BenignVariant(
        Writer(LogOnFirstLocalRank, {"once_per_node"}, records=lines, name="log_of_each_machine"),
        "a folder that only one machine sees",
    ),
    BenignVariant(Writer(BarrierForAll, records=lines), "a barrier outside of the guard"),
    BenignVariant(Writer(NewGroupForAll, records=lines), "groups of the guarded rank alone"),
    BenignVariant(
        Writer(FirstRanksMeet, records=lines), "a barrier of those ranks that all come to it"
    ),
    BenignVariant(
        Writer(CountsSamples, records=lines), "a reduction in which empty ranks take part"
    ),
    BenignVariant(Writer(MakesFolderOnEveryRank, records=lines), "one folder made by every rank"),
    BenignVariant(Writer(RemovesWhatMayBeGone, records=lines), "one file removed by every rank"),
    BenignVariant(Writer(MovesOnOneRank, records=lines), "glob(), then rename on one rank"),
    BenignVariant(
        Writer(BarrierThatAllKeep, records=lines), "a barrier whether or not a file is missing"
    ),
    BenignVariant(Writer(MakesFolderBeforeOthersLook, records=lines), "exists(), behind a barrier"),
)
