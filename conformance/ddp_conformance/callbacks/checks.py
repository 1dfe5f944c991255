"""CBK-01, CBK-02, CBK-04 and CBK-05: what callbacks call, decide, and do when one of them fails.

The loops run in lockstep: a rank that would wait for ever is seen, and does not wait. What
an error does to the other ranks is also seen for real, in processes that may die of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import NoReturn
from unittest import mock

from ddp_conformance.callbacks import judge
from ddp_conformance.callbacks.dying import loop_and_die
from ddp_conformance.callbacks.history import LoopEnd, StepCost, StepEnd, Tripped
from ddp_conformance.callbacks.stepping import ERROR_STEP, run_loop
from ddp_conformance.callbacks.subjects import Callback, ErrorPath
from ddp_conformance.callbacks.tracing import Trace, traced
from ddp_conformance.framework.case import Case
from ddp_conformance.framework.history import Failed, Record, Run
from ddp_conformance.framework.ranks import Ranks
from ddp_conformance.framework.recording import (
    Judge,
    cases_of,
    describe,
    judge_each,
    record,
    record_once,
)
from ddp_conformance.framework.registry import Check, Guarantee, remark
from ddp_conformance.framework.verdict import UndecidedError, Violation
from ddp_conformance.launched.order import Named, Scenario, Work
from ddp_conformance.launched.start.apart import find_apart
from ddp_conformance.launched.start.launch import Limits, launch
from ddp_conformance.lockstep.clocks import SECONDS, clocks_gain
from ddp_conformance.lockstep.lockstep import Lockstep, in_lockstep
from ddp_conformance.lockstep.same_calls import demand_same_calls
from ddp_conformance.metrics.subjects import Metric

CBK_01 = Guarantee(
    "CBK-01",
    "In every process group all ranks MUST make the same collectives in the same order, of one "
    "operation, root, shape and dtype, and called by the same functions.",
)
CBK_02 = Guarantee(
    "CBK-02",
    "What is decided in a step (to stop, the learning rate, to skip, the best checkpoint, the "
    "resolution) MUST be the same on all ranks.",
)
CBK_04 = Guarantee(
    "CBK-04",
    "An error in user code on one rank MUST end all ranks in bounded time, and no rank may "
    "silently skip a batch.",
    tier=2,
)


CBK_05 = Guarantee(
    "CBK-05",
    "A step after the first MUST NOT make more collectives than the component states.",
    tier=2,
)


class CheckError(RuntimeError):
    """The error that the check puts into a loop."""


def observe_loop(
    subject: Callback, case: Case, ranks: Ranks, *, gains: bool = False
) -> Iterator[Record]:
    """The steps of this rank and its collectives in all groups.

    If it ``gains``, its clocks are ahead, and another hour more after each step.
    """
    records: list[Record] = []
    trace = Trace(case.rank)
    lockstep = Lockstep(ranks)
    with clocks_gain() if gains else nullcontext(do_nothing) as gain:

        def note(seen: StepEnd | LoopEnd) -> None:
            records.append(seen)
            gain()

        with suppress(SystemExit), exits_raise(), in_lockstep(lockstep), traced(trace):
            run_loop(case, lambda: subject.make(case), note)
    yield from (*records, *trace.calls, *lockstep.calls)


def do_nothing() -> None:
    """Do nothing, as a callback that only reads the clock."""


def observe_error(subject: ErrorPath, case: Case, ranks: Ranks, failing: int) -> Iterator[Record]:
    """Record a loop with an error on the rank ``failing``."""
    records: list[Record] = []

    def trip(step: int) -> None:
        if case.rank == failing and step == ERROR_STEP:
            records.append(Tripped(case.rank, step))
            raise CheckError(f"put into step {step} of rank {failing} by the check")

    lockstep = Lockstep(ranks)
    try:
        with exits_raise(), in_lockstep(lockstep):
            run_loop(case, lambda: subject.make(case, trip), records.append)
    except (Exception, SystemExit) as error:
        records.append(Failed(case.rank, describe(error)))
    yield from (*records, *lockstep.calls)


@contextmanager
def exits_raise() -> Iterator[None]:
    """A rank that would end its process by ``os._exit`` raises ``SystemExit``: it leaves the loop.

    Its exit code counts in processes of its own.
    """
    own, ending = os.getpid(), os._exit

    def leave(code: int) -> NoReturn:
        if os.getpid() != own:
            ending(code)
        raise SystemExit(code)

    with mock.patch.object(os, "_exit", leave):
        yield


def loop_runs(subject: Callback, ranks: Ranks) -> tuple[Run, Run]:
    """Two runs, on numbers of samples that are no multiple of the world size.

    The first number is small, so that a loop completes several epochs. The second makes 23 steps
    of one sample, to see what happens in every tenth step. In it the last rank's clocks gain time,
    unless the loop raises then, as for a step that takes too long.
    """
    few, many = few_samples(ranks), many_samples(ranks)
    first = loop_run(subject, ranks, few)
    try:
        second = loop_run(subject, ranks, many, gains=True)
    except UndecidedError:
        second = loop_run(subject, ranks, many)
        remark(f"all clocks agree: the loop raises where those of rank {last_of(ranks)} gain time")
    return first, second


def loop_run(subject: Callback, ranks: Ranks, size: int, *, gains: bool = False) -> Run:
    """A run in which the clocks of the last rank may gain time."""

    def observe(subject: Callback, case: Case) -> Iterator[Record]:
        return observe_loop(subject, case, ranks, gains=gains and case.rank == last_of(ranks) > 0)

    (run,) = record_once(subject, ranks, cases_of(ranks, (size,)), observe, f"loop, {gains=}")
    return run


def last_of(ranks: Ranks) -> int:
    """The last rank."""
    return ranks.world_size - 1


def few_samples(ranks: Ranks) -> int:
    """A number that is no multiple of the world size."""
    return 2 * ranks.world_size + 1


def many_samples(ranks: Ranks) -> int:
    """A number that makes 23 steps of one sample on the first rank."""
    return 22 * ranks.world_size + 1


def find_different_collectives(subject: Callback, ranks: Ranks) -> tuple[Violation, ...]:
    """Check CBK-01."""
    runs = loop_runs(subject, ranks)
    return _judged(subject, ranks, runs, lambda run: judge.judge_same_trace(run.history))


def _judged(
    subject: Callback, ranks: Ranks, runs: tuple[Run, Run], look: Judge
) -> tuple[Violation, ...]:
    """What the runs show; if only that in which clocks gain does, once more without."""
    few, many = runs
    found = judge_each([few], look)
    if found or not (by_clock := judge_each([many], look)):
        return found
    how = f"the clocks of rank {last_of(ranks)} gain {SECONDS} s in each step: "
    return judge_each([loop_run(subject, ranks, many_samples(ranks))], look) or tuple(
        replace(one, what=how + one.what) for one in by_clock
    )


def find_different_decisions(subject: Callback, ranks: Ranks) -> tuple[Violation, ...]:
    """CBK-02; if nothing is found, once more with a hash seed of the last rank's own.

    Undecided if the loops were cut off before any decision differed.
    """
    runs = loop_runs(subject, ranks)
    found = _judged(subject, ranks, runs, lambda run: judge.judge_decisions(run.history))
    if not found:
        demand_same_calls(subject, runs, "CBK-01")
    return found or find_apart(
        subject, ranks, few_samples(ranks), decisions, find_decisions_of_a_few_samples
    )


def decisions(subject: Callback, case: Case) -> Iterator[Record]:
    """The steps of one rank."""
    records: list[Record] = []
    run_loop(case, lambda: subject.make(case), records.append)
    yield from records


def find_decisions_of_a_few_samples(subject: Callback, ranks: Ranks) -> tuple[Violation, ...]:
    """CBK-02 by one run, of a few samples."""
    cases = cases_of(ranks, (few_samples(ranks),))
    runs = record(subject, ranks, cases, lambda s, c: observe_loop(s, c, ranks))
    found = judge_each(runs, lambda run: judge.judge_decisions(run.history))
    if not found:
        demand_same_calls(subject, runs, "CBK-01")
    return found


def find_swallowed_errors(subject: ErrorPath, ranks: Ranks) -> tuple[Violation, ...]:
    """CBK-04: an error on the first rank, then one on the last; then deaths of processes.

    Processes die only if the errors show nothing, and only until one death shows something: each
    hang there takes :attr:`ErrorPath.patience`.
    """
    found = tuple(
        replace(violation, case=f"error on rank {failing}")
        for failing in sorted({0, ranks.world_size - 1})
        for run in tripped_runs(subject, ranks, failing)
        for violation in judge.judge_error_path(run.history)
    )
    return found or next(filter(None, violations_of_deaths(subject, ranks)), ())


def violations_of_deaths(subject: ErrorPath, ranks: Ranks) -> Iterator[tuple[Violation, ...]]:
    """The violations of one run for each way to die."""
    for scenario in deaths(ranks.world_size):
        history = death_run(subject, ranks, scenario).history
        yield tuple(
            replace(violation, case=scenario.death_at("in its loop"))
            for violation in judge.judge_death(history, scenario.death)
        )


def deaths(world_size: int) -> tuple[Scenario, ...]:
    """Every way to die, on the first rank or the last; on one rank, only the exception."""
    last = world_size - 1
    raises = Scenario(dying=last, death="raises")
    if world_size == 1:
        return (raises,)
    return (
        raises,
        Scenario(dying=0, death="is killed"),
        Scenario(dying=last, death="exits with 0"),
    )


def death_run(subject: ErrorPath, ranks: Ranks, scenario: Scenario) -> Run:
    """One run in processes of its own, of which one dies."""

    def observe(subject: ErrorPath, case: Case) -> Iterator[Record]:
        argv = (str(case.size), str(case.directory))
        work = Work(Named.of(loop_and_die), Named.of(subject.make), argv, scenario=scenario)
        if case.rank == 0:
            limits = Limits(subject.timeout, subject.patience)
            yield from launch(work, case.world_size, case.directory, limits)

    (run,) = record(subject, ranks, cases_of(ranks, (2 * ranks.world_size + 1,)), observe)
    return run


def tripped_runs(subject: ErrorPath, ranks: Ranks, failing: int) -> tuple[Run, ...]:
    """The runs with an error on ``failing``; undecided if the loop was cut off before the error."""
    runs = error_runs(subject, ranks, failing)
    demand_same_calls(
        subject, [run for run in runs if not judge.has_tripped(run.history)], "CBK-01"
    )
    return runs


def error_runs(subject: ErrorPath, ranks: Ranks, failing: int) -> tuple[Run, ...]:
    """One run with an error on the rank ``failing``."""
    cases = cases_of(ranks, (2 * ranks.world_size + 1,))
    return record(subject, ranks, cases, lambda s, case: observe_error(s, case, ranks, failing))


def observe_costs(subject: Callback, case: Case, ranks: Ranks) -> Iterator[Record]:
    """How many collectives each step of this rank makes."""
    trace, lockstep = Trace(case.rank), Lockstep(ranks)
    costs = Costs(trace)
    with in_lockstep(lockstep), traced(trace):
        run_loop(case, lambda: subject.make(case), costs.note)
    yield from (*costs.found, *lockstep.calls)


def observe_costs_of_batches(subject: Metric, case: Case, ranks: Ranks) -> Iterator[Record]:
    """The collectives of each batch that a metric is fed with; the ranks have equally many."""
    trace, lockstep = Trace(case.rank), Lockstep(ranks)
    costs = Costs(trace)
    with in_lockstep(lockstep), traced(trace):
        metric = subject.make(case)
        for step, start in enumerate(range(case.rank, case.size, case.world_size)):
            subject.update(metric, *subject.batch([start]))
            costs.note(StepEnd(case.rank, step))
    yield from (*costs.found, *lockstep.calls)


class Costs:
    """What a trace has of each step."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._seen = 0
        self.found: list[StepCost] = []

    def note(self, seen: StepEnd | LoopEnd) -> None:
        """A step is over; what comes after the last one is no part of any."""
        calls = self._trace.calls[self._seen :]
        self._seen += len(calls)
        if isinstance(seen, StepEnd):
            made = tuple(f"{call.what} ({call.site})" for call in calls)
            self.found.append(StepCost(seen.rank, seen.step, made))


def find_costs(subject: Callback, ranks: Ranks) -> tuple[Violation, ...]:
    """CBK-05 of a loop."""
    cases = cases_of(ranks, (few_samples(ranks), many_samples(ranks)))
    return _costs(
        subject, record(subject, ranks, cases, lambda s, c: observe_costs(s, c, ranks)), "CBK-01"
    )


def find_costs_of_batches(subject: Metric, ranks: Ranks) -> tuple[Violation, ...]:
    """CBK-05 of a metric."""
    cases = cases_of(ranks, (23 * ranks.world_size,))
    runs = record(subject, ranks, cases, lambda s, c: observe_costs_of_batches(s, c, ranks))
    return _costs(subject, runs, "MET-06")


def _costs(
    subject: Callback | Metric, runs: Sequence[Run], guarantee: str
) -> tuple[Violation, ...]:
    """Undecided where ranks were cut off before too many came."""
    stated = subject.collectives or 0
    found = judge_each(runs, lambda run: judge.judge_costs(run.history, stated))
    if not found:
        demand_same_calls(subject, runs, guarantee)
    return found


STATES = frozenset({"states_collectives"})

CHECKS = (
    Check(CBK_01, (Callback,), find_different_collectives),
    Check(
        CBK_02,
        (Callback,),
        find_different_decisions,
        needs=frozenset({"decides"}),
    ),
    Check(CBK_04, (ErrorPath,), find_swallowed_errors),
    Check(CBK_05, (Callback,), find_costs, needs=STATES),
    Check(CBK_05, (Metric,), find_costs_of_batches, needs=STATES),
)
