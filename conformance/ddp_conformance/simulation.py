"""Sampling guarantees at world sizes that no test machine has: all ranks in one process.

A sampler or a loader that gets its rank as an argument delivers its samples without peers. So its
histories are recorded rank by rank, and judged as those of real ranks are. A simulation cannot
show what happens *between* ranks: hangs, races, a rank taken from a process group, files, memory.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ddp_conformance.framework import nemesis
from ddp_conformance.framework.case import Case
from ddp_conformance.framework.history import Record, Run
from ddp_conformance.framework.recording import Judge, Observe, judge_each
from ddp_conformance.framework.registry import Check, checks_for
from ddp_conformance.framework.verdict import Violation, broken
from ddp_conformance.sampling import judge
from ddp_conformance.sampling.checks import (
    EPOCHS,
    GROUPED_SAMPLES,
    MANY_EPOCHS,
    MANY_SAMPLES,
    QUICK,
    full_size,
    judge_coverage_of,
    unless_refused,
)
from ddp_conformance.sampling.deliveries import Delivering, deliveries
from ddp_conformance.sampling.sizes import SECONDS, in_full, looks_wrong, shares, unusual_sizes
from ddp_conformance.sampling.stopwatch import Stopwatch
from ddp_conformance.sampling.subjects import Sampler

AFFORDED = 8_000_000
"""Samples times ranks at one size: most samplers make the order of all samples on each rank."""


def simulate(subject: Delivering, world_size: int, sizes: Sequence[int] = ()) -> tuple[str, ...]:
    """Judge SMP-01 to SMP-04 on ``world_size`` simulated ranks; returns the ids that were judged.

    ``sizes`` are numbers of samples, by default 1, ws+1 and 2·ws+3, and then as many others as a
    moment allows, with orders over 24 epochs. The global random states differ from rank to rank.
    Raises :class:`~ddp_conformance.framework.verdict.GuaranteeError` for the first guarantee that
    is broken, and any exception of the subject's own code. A subject with a factory that takes its
    rank from a process group cannot be simulated.
    """
    usual = sizes or (1, world_size + 1, 2 * world_size + 3)
    watch = Stopwatch()
    runs = [_run(subject, size, world_size, EPOCHS) for size in usual]
    quick = isinstance(subject, Sampler) or watch.seconds() < QUICK
    again = usual if "shuffles" in subject.traits else ()
    later = {size: _run(subject, size, world_size, EPOCHS[-1:]) for size in again}
    judges = _judges(subject, later)
    applicable = [check for check in checks_for(subject) if check.obstacle(subject) is None]
    judged = [check for check in applicable if check.id in judges]
    for check in judged:
        _demand(check, subject, world_size, judge_each(runs, judges[check.id]))
    if "replacement" in subject.traits and not sizes:
        _demand(judged[0], subject, world_size, _equal_draws(subject, world_size))
    if quick and not sizes:
        _look_further(subject, world_size, {check: judges[check.id] for check in judged})
    return tuple(check.id for check in judged)


def _look_further(subject: Delivering, world_size: int, judges: dict[Check, Judge]) -> None:
    suspects = _suspicious_runs(subject, world_size)
    for check, judge_run in judges.items():
        found = _returning_order(subject, world_size) if check.id == "SMP-04" else ()
        _demand(check, subject, world_size, found or judge_each(suspects, judge_run))


def _suspicious_runs(subject: Delivering, world_size: int) -> list[Run]:
    """The first run at another size that looks wrong, if there is one in :data:`SECONDS`."""
    watch = Stopwatch()
    least = subject.min_size * world_size
    afforded = [s for s in unusual_sizes(world_size) if least <= s <= AFFORDED // world_size]
    for size in afforded:
        if watch.seconds() > SECONDS:
            return []
        run = _run_of(subject, size, world_size, range(world_size), shares)
        if looks_wrong(run, subject):
            return [in_full(run)]
    return []


def _returning_order(subject: Delivering, world_size: int) -> tuple[Violation, ...]:
    """Orders of the first and the last rank, which are enough to see an order come again.

    What has one order in all epochs may sort shuffled samples in groups, and is looked at again
    with more samples.
    """
    few = max(MANY_SAMPLES * world_size, full_size(subject, world_size))
    found: tuple[Violation, ...] = ()
    for size in (few, max(few, GROUPED_SAMPLES * world_size)):
        two, many = (
            _run(subject, size, world_size, epochs, sorted({0, world_size - 1}))
            for epochs in (EPOCHS, MANY_EPOCHS)
        )
        again = (
            *judge_each([two], lambda run: judge.judge_order_changes(run.history)),
            *judge_each([many], lambda run: judge.judge_order_returns(run.history)),
        )
        if not again:
            return ()
        found = found or again
    return found


def _equal_draws(subject: Delivering, world_size: int) -> tuple[Violation, ...]:
    """Draws of a few ranks, with enough samples to recognise equal ones."""
    few = sorted({0, min(1, world_size - 1), world_size - 1})
    run = _run(subject, MANY_SAMPLES * world_size, world_size, EPOCHS, few)
    return judge_each([run], lambda run: judge.judge_draws(run.history))


def _demand(
    check: Check, subject: Delivering, world_size: int, violations: Sequence[Violation]
) -> None:
    if violations:
        where = f"on {world_size} simulated ranks"
        raise broken(check.id, check.guarantee.statement, subject.name, where, violations)


def _judges(subject: Delivering, later: dict[int, Run]) -> dict[str, Judge]:
    return {
        "SMP-01": judge_coverage_of(subject),
        "SMP-02": unless_refused(lambda run: judge.judge_equal_batches(run.history)),
        "SMP-03": unless_refused(lambda run: judge.judge_exactly_once(run.history, run.case.size)),
        "SMP-04": unless_refused(
            lambda run: judge.judge_order_repeats(run.history, later[run.case.size].history)
        ),
    }


def _run(
    subject: Delivering,
    size: int,
    world_size: int,
    epochs: Sequence[int],
    ranks: Iterable[int] = (),
) -> Run:
    """A run of all ranks, or of some."""

    def observe(subject: Delivering, case: Case) -> Iterator[Record]:
        return deliveries(subject, case, epochs)

    return _run_of(subject, size, world_size, ranks or range(world_size), observe)


def _run_of(
    subject: Delivering, size: int, world_size: int, ranks: Iterable[int], observe: Observe
) -> Run:
    with tempfile.TemporaryDirectory(prefix="ddp-simulation-") as name:
        cases = [Case(size, rank, world_size, Path(name)) for rank in ranks]
        if subject.prepare is not None:
            subject.prepare(cases[0])
        records = tuple(seen for case in cases for seen in _one_rank(subject, case, observe))
        return Run(cases[0], records)


def _one_rank(subject: Delivering, case: Case, observe: Observe) -> Iterator[Record]:
    nemesis.scatter("simulation", case.rank)
    yield from observe(subject, case)
