"""WRT-02 and WRT-06: when others may read a file, and who prepares data for them."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ddp_conformance.framework.case import Case
from ddp_conformance.framework.failures import cause_of, failures
from ddp_conformance.framework.history import Failed, Record, Run
from ddp_conformance.framework.ranks import Ranks
from ddp_conformance.framework.recording import (
    cases_of,
    describe,
    judge_each,
    on_all,
    record,
)
from ddp_conformance.framework.registry import Check, Guarantee
from ddp_conformance.framework.verdict import UndecidedError, Violation, listing
from ddp_conformance.lockstep.lockstep import Lockstep, in_lockstep
from ddp_conformance.lockstep.machines import (
    Place,
    launched_by,
    ranks_of_machines,
    several_machines,
)
from ddp_conformance.lockstep.same_calls import demand_same_calls, uncut
from ddp_conformance.writing import judge_publishing as judge
from ddp_conformance.writing.arriving import Arriving, marks_for
from ddp_conformance.writing.history import Glimpse, Opened, Prepared, Saw, SetUp
from ddp_conformance.writing.judge import judge_who_was_first
from ddp_conformance.writing.subjects import Preparation, Writer
from ddp_conformance.writing.writes import FileChange, do_nothing, looking_at, writes_below

WRT_02 = Guarantee(
    "WRT-02",
    "A file that other ranks read MUST be complete before it is visible, and they MUST NOT go on "
    "before it is.",
    tier=2,
)
WRT_06 = Guarantee(
    "WRT-06",
    "prepare_data MUST run once on each machine and end before setup begins on any rank, and "
    "setup MUST run on all ranks.",
    tier=2,
)

RECORDS = 2
"""Records that are published: the second one replaces or follows the first."""

# ---------------------------------------------------------------- WRT-02


def observe_publishing(
    subject: Writer, case: Case, ranks: Ranks, late: int, between: bool = False
) -> Iterator[Record]:
    """Records published while the rank ``late`` writes, or returns, after all others.

    Or, where it is held ``between``, while it writes before all others and renames after them.
    """
    writers: list[Any] = []
    for number in range(RECORDS):
        arriving = Arriving(ranks, marks_for(case, ranks, number))
        turn = Turn(number, late, between)
        try:
            # No rank goes on to the next record while another one still reads this one, or cannot.
            yield from on_all(
                ranks, functools.partial(publish_one, subject, case, arriving, turn, writers)
            )
        except failures() as error:
            if not isinstance(cause_of(error), FileNotFoundError | FileExistsError):
                raise
            yield Failed(case.rank, describe(error))
            return
    with in_lockstep(Lockstep(ranks)):
        for writer in writers:
            subject.close(writer)


class Turn(NamedTuple):
    """A record to be published: its number, and how its ranks are held."""

    number: int
    late: int
    between: bool


def publish_one(
    subject: Writer, case: Case, arriving: Arriving, turn: Turn, writers: list[Any]
) -> list[Record]:
    """What this rank saw of a record."""
    is_late = case.rank == turn.late
    come_last = arriving.come_last if is_late and not turn.between else do_nothing
    found: list[Record] = []

    def before(change: FileChange) -> None:
        if is_late and turn.between and change.names:
            arriving.come_between()
        come_last()

    lockstep = in_lockstep(Lockstep(arriving, arriving.meet, come_last))
    with lockstep, writes_below(case.directory, before):
        if not writers:
            writers.append(subject.make(case))
        come_last()
        if turn.between and not is_late:
            arriving.await_between(turn.late)
        publish(subject, case, writers[0], turn.number, found)
        last, problem = read_last(subject, case)
        found.append(Saw(case.rank, turn.number, last, turn.late, problem))
        arriving.has_read()
    return found


def publish(subject: Writer, case: Case, writer: Any, number: int, found: list[Record]) -> None:
    """Call the writer, and read the files whenever they have changed."""

    def look(place: str) -> None:
        last, problem = read_last(subject, case)
        found.append(Glimpse(case.rank, number, last, problem, place))

    with looking_at(case.directory, look):
        writer(number)


def read_last(subject: Writer, case: Case) -> tuple[int, str]:
    """The last record that can be read, -1 for none, and why nothing can."""
    assert subject.records is not None, "the trait 'published' comes with records"
    try:
        numbers = subject.records(case.directory)
    except FileNotFoundError:
        return -1, ""
    except failures() as error:
        return -1, describe(error)
    return (int(numbers[-1]) if numbers else -1), ""


def find_unpublished(subject: Writer, ranks: Ranks) -> tuple[Violation, ...]:
    """WRT-02: once for each rank that may be the last; then for each that is held in between."""
    found: dict[str, Violation] = {}
    for between in (False, True):
        for late in range(ranks.world_size):
            for run in publishing_runs(subject, ranks, late, between):
                lost = judge_who_was_first(run.history)
                if lost:
                    demand_success_alone(subject, ranks)
                    return lost
                violations = (
                    *judge.judge_atomic(run.history),
                    *judge.judge_in_time(run.history, RECORDS, ranks.world_size),
                )
                for violation in violations:
                    found.setdefault(violation.what, violation)
    return tuple(found.values())


def demand_success_alone(subject: Writer, ranks: Ranks) -> None:
    """Raise :class:`UndecidedError` if a rank misses a file in a folder of its own, too."""

    def write_alone(subject: Writer, case: Case) -> Iterator[Record]:
        own = case.directory / f"rank-{case.rank}"
        own.mkdir()
        with in_lockstep(Lockstep(ranks)):
            writer = subject.make(replace(case, directory=own))
            for number in range(RECORDS):
                writer(number)
            subject.close(writer)
        yield from ()

    record(subject, ranks, cases_of(ranks, (1,)), write_alone)


def publishing_runs(
    subject: Writer, ranks: Ranks, late: int, between: bool = False
) -> tuple[Run, ...]:
    """One run in which the rank ``late`` comes last, or is held between write and rename."""
    return record(
        subject,
        ranks,
        cases_of(ranks, (1,)),
        lambda s, case: observe_publishing(s, case, ranks, late, between),
    )


# ---------------------------------------------------------------- WRT-06


def observe_preparation(
    subject: Preparation, case: Case, arriving: Arriving, place: Place
) -> Iterator[Record]:
    """One run of the Trainer, with what its data module does before the first batch.

    Ranks write one after the other, and only when all that do not wait are about to write: who has
    looked whether a file is there has found none.
    """
    from ddp_conformance.writing.preparation_runs import PreparationWatch, fit_one_batch

    watch = PreparationWatch(case)
    lockstep = Lockstep(arriving, arriving.meet)

    def before(change: FileChange) -> None:
        arriving.take_turn(change.paths)

    try:
        with in_lockstep(lockstep), writes_below(case.directory, before) as log:
            fit_one_batch(case, watch.over(subject.make(case), log), place.machines)
    except failures() as error:
        watch.records.append(Failed(case.rank, describe(error)))
    yield from (*watch.records, *lockstep.calls)


def observe_on_machines(subject: Preparation, case: Case, ranks: Ranks) -> Iterator[Record]:
    """Prepare as under torchrun on several machines, none of which sees another one's files."""
    place = Place(case.rank, case.world_size, several_machines(case.world_size))
    own = case.directory.with_name(f"{case.directory.name}-machine-{place.machine}")
    if place.local_rank == 0:
        shutil.copytree(case.directory, own)
    made = on_all(ranks, lambda: subject.make(case))
    if not all(ranks.gather(getattr(made, "prepare_data_per_node", True))):
        own = case.directory  # which all machines see
    arriving = Arriving(ranks, marks_for(case, ranks))
    with launched_by("torchrun", place):
        yield from observe_preparation(subject, replace(case, directory=own), arriving, place)


def find_unprepared(subject: Preparation, ranks: Ranks) -> tuple[Violation, ...]:
    """WRT-06. Undecided if no rank could be set up, or where ranks were cut off before it."""
    cases = cases_of(ranks, (2 * ranks.world_size + 1,))
    alone = Place(ranks.rank, ranks.world_size)

    def observe(subject: Preparation, case: Case) -> Iterator[Record]:
        arriving = Arriving(ranks, marks_for(case, ranks))
        return observe_preparation(subject, case, arriving, alone)

    runs = record(subject, ranks, cases, observe)
    _stop_if_all_failed(subject, runs)
    _stop_if_none_began(subject, runs)
    size = ranks.world_size
    found = _judge_machines(subject, runs, [range(size)])
    if found or several_machines(size) == 1:
        return found
    runs = record(subject, ranks, cases, lambda s, case: observe_on_machines(s, case, ranks))
    _stop_if_all_failed(subject, runs)
    return tuple(
        replace(one, what=f"as on {several_machines(size)} machines under torchrun, {one.what}")
        for one in _judge_machines(subject, runs, ranks_of_machines(size))
    )


def _judge_machines(
    subject: Preparation, runs: Sequence[Run], machines: Sequence[range]
) -> tuple[Violation, ...]:
    judges = [functools.partial(_judge_machine, ranks) for ranks in machines]
    found = tuple(one for judge in judges for one in judge_each(runs, judge))
    if not found:
        demand_same_calls(subject, runs, "WRT-04")
    return found


def _judge_machine(ranks: range, run: Run) -> tuple[Violation, ...]:
    kinds = Prepared | SetUp | Failed | Opened
    history = [one for one in run.history if isinstance(one, kinds) and one.rank in ranks]
    return judge.judge_preparation(history, ranks if uncut([run]) else ())


def _stop_if_all_failed(subject: Preparation, runs: Sequence[Run]) -> None:
    for run in runs:
        failed = [one for one in run.history if isinstance(one, Failed)]
        if len(failed) == run.case.world_size:
            raise UndecidedError(f"{subject.name} raised on all ranks: {failed[0].error}")


def _stop_if_none_began(subject: Preparation, runs: Sequence[Run]) -> None:
    """What prepares for all has failed: the others were kept from their setup, and did no wrong."""
    for run in runs:
        failed = [one for one in run.history if isinstance(one, Failed)]
        if failed and not any(isinstance(one, SetUp) for one in run.history):
            lines = [f"rank {one.rank}: {one.error}" for one in failed]
            raise UndecidedError(f"{subject.name} raised before setup:\n{listing(lines)}", lines)


CHECKS = (
    Check(WRT_02, (Writer,), find_unpublished, needs=frozenset({"published"})),
    Check(WRT_06, (Preparation,), find_unprepared),
)
