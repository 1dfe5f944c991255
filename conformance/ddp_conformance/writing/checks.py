"""WRT-01, WRT-03 and WRT-04: who writes the files that ranks share, and where.

A writer runs twice: with one folder for all ranks, whose content is read back while an audit
hook hears who writes, and with a folder for each rank, where the files of every rank lie
apart, however they were written. Ranks that make folders make them at the same time: what one
of them found missing, another one makes before it does.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from ddp_conformance.framework.case import Case
from ddp_conformance.framework.failures import failures
from ddp_conformance.framework.groups import GroupOfTries
from ddp_conformance.framework.history import Failed, Record, Run
from ddp_conformance.framework.ranks import Ranks
from ddp_conformance.framework.recording import (
    cases_of,
    describe,
    judge_each,
    on_all,
    record,
    record_once,
)
from ddp_conformance.framework.registry import Check, Guarantee
from ddp_conformance.framework.verdict import Violation
from ddp_conformance.launched.start.apart import find_apart
from ddp_conformance.lockstep.clocks import SECONDS, clock_ahead
from ddp_conformance.lockstep.lockstep import Lockstep, in_lockstep
from ddp_conformance.lockstep.machines import Place, launched_by, several_machines
from ddp_conformance.lockstep.same_calls import demand_same_calls, judge_same_calls, uncut
from ddp_conformance.writing import guarding, judge, judge_publishing, publishing
from ddp_conformance.writing.arriving import Arriving, marks_for
from ddp_conformance.writing.history import Opened, ReadBack, ReportedPaths, Wrote
from ddp_conformance.writing.subjects import Writer
from ddp_conformance.writing.writes import FileChange, do_nothing, writes_below

WRT_01 = Guarantee(
    "WRT-01",
    "Each file that ranks share MUST be written by exactly one rank, and each record in it "
    "exactly once.",
    starred=True,
)
WRT_03 = Guarantee(
    "WRT-03",
    "The paths that a writer reports MUST be the same on all ranks and exist when it has written.",
)
WRT_04 = Guarantee(
    "WRT-04",
    "Code that runs on one rank only MUST NOT call what other ranks must call too.",
)

Way: TypeAlias = Callable[[Writer, Case, Ranks], Iterator[Record]]

RECORDS = 3
"""Records that a writer writes."""


def written_together(
    subject: Writer, case: Case, ranks: Ranks, own: Case | None = None, late: int | None = None
) -> Iterator[Record]:
    """Write with one folder for all ranks, or with the folder of ``own`` for those of a machine.

    Without ``late``, ranks do one after the other what only one of them can do. The rank ``late``
    begins, and goes on after each collective, when all others have written or wait for it in a
    collective; if it is the last one, its clock is ahead, too.
    """
    # With folders of ``own`` in a second run, in which rank 0 is ahead of the others.
    arriving = Arriving(ranks, marks_for(case, ranks), ahead=own is not None)
    own = case if own is None else own
    come_last = arriving.come_last if case.rank == late else do_nothing
    lockstep = Lockstep(arriving, arriving.meet, come_last)
    writers: list[Any] = []
    reported: list[ReportedPaths] = []
    first_wins = "first_wins" in subject.traits

    def before(change: FileChange) -> None:
        if late is None and (first_wins or change.takes or arriving.has_acted):
            arriving.take_turn(change.paths)

    with ExitStack() as block:
        log = block.enter_context(writes_below(case.directory, before))
        if late == case.rank > 0:
            block.enter_context(clock_ahead())
        try:
            come_last()
            with in_lockstep(lockstep):
                writers.append(write_records(subject, own))
        finally:
            # Also on a rank that raised: the others read what was written, and wait for it.
            all_wrote = all(arriving.gather(bool(writers)))
        if all_wrote:
            # A path that is made up when it is reported is another one by now.
            with in_lockstep(lockstep):
                paths = tuple(map(str, subject.paths(writers[0])))
                reported.append(ReportedPaths(case.rank, paths))
    yield from lockstep.calls
    yield from (
        Opened(case.rank, file.path, lock=file.lock, claim=file.claim, own=file.own)
        for file in log.written()
    )
    for one in reported:
        missing = tuple(path for path in one.paths if not Path(path).exists())
        yield replace(one, missing=missing)
    if case.rank == 0 and subject.records is not None:
        yield read_back(subject.records, own)


def read_back(records: Any, case: Case) -> ReadBack:
    """What stands in the shared folder."""
    try:
        return ReadBack(0, tuple(int(number) for number in records(case.directory)))
    except failures() as error:
        return ReadBack(0, (), describe(error))


def written_apart(subject: Writer, case: Case, ranks: Ranks) -> Iterator[Record]:
    """A folder for each rank."""
    arriving = Arriving(ranks, marks_for(case, ranks))
    own = case.directory / f"rank-{case.rank}"
    own.mkdir()
    yield from _written_alone(subject, replace(case, directory=own), arriving)


def written_once(subject: Writer, case: Case, ranks: Ranks) -> Iterator[Record]:
    """Write in a folder for each rank, and then once more where all is there that rank 0 has
    written by itself.
    """
    group = GroupOfTries(ranks)
    yield from on_all(ranks, lambda: [*written_apart(subject, case, ranks)])
    group.begin_try()  # closed, a writer may have ended it
    arriving = Arriving(ranks, marks_for(case, ranks, 1))
    own = case.directory / f"again-{case.rank}"
    shutil.copytree(case.directory / "rank-0", own, symlinks=True)
    yield from _written_alone(subject, replace(case, directory=own), arriving)


def _written_alone(subject: Writer, case: Case, arriving: Arriving) -> Iterator[Record]:
    before = _files(case.directory)
    lockstep = Lockstep(arriving, arriving.meet)
    with in_lockstep(lockstep), writes_below(case.directory) as log:
        write_records(subject, case)
    yield from lockstep.calls
    locks = {file.path for file in log.written() if file.lock}
    for name, state in sorted(_files(case.directory).items()):
        if before.get(name) != state:
            yield Wrote(case.rank, name, name in locks, name in before)


def _files(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Files and links below a folder, with what changes when they are written."""
    found = [path for path in folder.rglob("*") if path.is_symlink() or path.is_file()]
    states = {str(path.relative_to(folder)): path.lstat() for path in found}
    return {name: (s.st_ino, s.st_mtime_ns, s.st_size) for name, s in states.items()}


def written_by_all(
    subject: Writer, case: Case, ranks: Ranks, own: Case | None = None
) -> Iterator[Record]:
    """One folder for all ranks, where each must bear that another one was first."""
    try:
        yield from written_together(subject, case, ranks, own)
    except (FileExistsError, FileNotFoundError) as error:
        # Not the subject's alone: with its own folder it came through.
        yield Failed(case.rank, describe(error))


def written_on_machines(subject: Writer, case: Case, ranks: Ranks) -> Iterator[Record]:
    """Write as under torchrun on several machines: with one folder, or with one for each."""
    place = Place(case.rank, case.world_size, several_machines(case.world_size))
    own = case
    if "once_per_node" in subject.traits:
        own = replace(case, directory=case.directory / f"machine-{place.machine}")
        own.directory.mkdir(exist_ok=True)
    with launched_by("torchrun", place):
        yield from written_by_all(subject, case, ranks, own)


def write_records(subject: Writer, case: Case) -> Any:
    """A new writer that has written all records, and is closed."""
    writer = subject.make(case)
    for number in range(RECORDS):
        writer(number)
    subject.close(writer)
    return writer


def runs_of(subject: Writer, ranks: Ranks, way: Way) -> tuple[Run, ...]:
    """One run of a writer, in one of the ways above."""
    return record(subject, ranks, cases_of(ranks, (1,)), lambda s, case: way(s, case, ranks))


def find_several_writers(subject: Writer, ranks: Ranks) -> tuple[Violation, ...]:
    """WRT-01. Undecided where ranks were cut off before two of them wrote anything."""
    first_wins = "first_wins" in subject.traits
    apart = runs_of(subject, ranks, written_once if first_wins else written_apart)
    judge_apart = judge.judge_first_wins if first_wins else judge.judge_single_writer
    together = runs_of(subject, ranks, written_by_all)
    found = judge_each(uncut(apart), lambda run: judge_apart(run.history))
    found += _several_writers(subject, together)
    if not found:
        demand_same_calls(subject, (*apart, *together), "WRT-04")
    machines = several_machines(ranks.world_size)
    if found or machines == 1:
        return found
    # Last, because what the subject keeps of its place must be that of the machine it is on.
    runs = runs_of(subject, ranks, written_on_machines)
    on_machines = _several_writers(subject, runs)
    if not on_machines:
        demand_same_calls(subject, runs, "WRT-04")
    where = f"as on {machines} machines under torchrun, "
    return tuple(replace(one, what=where + one.what) for one in on_machines)


def _several_writers(subject: Writer, runs: Sequence[Run]) -> tuple[Violation, ...]:
    first = RECORDS - 1 if "replaces" in subject.traits else 0
    lost = judge_each(runs, lambda run: judge.judge_who_was_first(run.history))
    # A rank that raised has written no more, and others that wait for it have not either.
    whole = () if lost else uncut(runs)
    return (
        *judge_each(whole, lambda run: judge.judge_records(run.history, RECORDS, first)),
        *judge_each(runs, lambda run: judge_publishing.judge_shared_files(run.history)),
        *lost,
    )


def find_wrong_paths(subject: Writer, ranks: Ranks) -> tuple[Violation, ...]:
    """WRT-03: the first rank comes late, and then the last one, whose clock is ahead by an hour.

    At last the last rank has a hash seed of its own.
    """
    return _of_the_late(subject, ranks, _wrong_paths) or find_apart(
        subject, ranks, 1, paths_reported, find_wrong_paths_in_one_run
    )


def _of_the_late(
    subject: Writer, ranks: Ranks, find: Callable[[Writer, Sequence[Run]], tuple[Violation, ...]]
) -> tuple[Violation, ...]:
    """What is found of the runs in which the first rank comes late, or else the last one."""
    for late in sorted({0, ranks.world_size - 1}):
        way = functools.partial(written_together, ranks=ranks, late=late)
        runs = record_once(subject, ranks, cases_of(ranks, (1,)), way, f"rank {late} comes last")
        found = find(subject, runs)
        if found:
            how = f"rank {late} comes last, its clock {SECONDS} s ahead: " if late else ""
            return tuple(replace(one, what=how + one.what) for one in found)
    return ()


def _wrong_paths(subject: Writer, runs: Sequence[Run]) -> tuple[Violation, ...]:
    """Undecided where a rank was cut off."""
    demand_same_calls(subject, runs, "WRT-04")
    return judge_each(runs, lambda run: judge.judge_paths(run.history))


def paths_reported(subject: Writer, case: Case) -> Iterator[Record]:
    """The paths reported by a writer that has written all records."""
    writer = write_records(subject, case)
    yield ReportedPaths(case.rank, tuple(map(str, subject.paths(writer))))


def find_wrong_paths_in_one_run(subject: Writer, ranks: Ranks) -> tuple[Violation, ...]:
    """WRT-03 where no rank is late."""
    return _wrong_paths(subject, runs_of(subject, ranks, written_together))


def find_guarded_collectives(subject: Writer, ranks: Ranks) -> tuple[Violation, ...]:
    """WRT-04, in the runs of WRT-03: who comes last finds what others have written."""
    return _of_the_late(subject, ranks, _guarded_collectives)


def _guarded_collectives(subject: Writer, runs: Sequence[Run]) -> tuple[Violation, ...]:
    return judge_each(runs, lambda run: judge_same_calls(run.history))


CHECKS = (
    *publishing.CHECKS,
    *guarding.CHECKS,
    Check(WRT_01, (Writer,), find_several_writers),
    Check(
        WRT_03,
        (Writer,),
        find_wrong_paths,
        needs=frozenset({"tells_paths"}),
    ),
    Check(WRT_04, (Writer,), find_guarded_collectives),
)
