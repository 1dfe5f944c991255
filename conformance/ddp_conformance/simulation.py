"""Sampling guarantees at world sizes that no test machine has: all ranks in one process.

A sampler or a loader that is told its rank needs no peers to say what it delivers. So its
histories are recorded rank by rank and go to the judges that real ranks' histories go to.
What it cannot show is what happens *between* ranks: hangs, races, a rank taken from a
process group, files, memory.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from ddp_conformance.frame import nemesis
from ddp_conformance.frame.case import Case
from ddp_conformance.frame.history import Record, Run
from ddp_conformance.frame.recording import Judge, judge_each
from ddp_conformance.frame.registry import Check, checks_for
from ddp_conformance.frame.verdict import GuaranteeError, Violation, listing
from ddp_conformance.sampling import judge
from ddp_conformance.sampling.checks import (
    Delivering,
    deliveries,
    judge_coverage_of,
    unless_refused,
)


def simulate(subject: Delivering, world_size: int, sizes: Sequence[int] = ()) -> tuple[str, ...]:
    """Judge SMP-01 to SMP-04 on ``world_size`` simulated ranks; returns the ids that were judged.

    ``sizes`` are numbers of samples, by default 1, ws+1 and 2·ws+3. The global random states
    differ from rank to rank. Raises :class:`~ddp_conformance.frame.verdict.GuaranteeError` for the
    first guarantee that is broken, and whatever the subject's own code raises. A subject whose
    factory asks a process group for its rank cannot be simulated.
    """
    sizes = sizes or (1, world_size + 1, 2 * world_size + 3)
    runs = [_run(subject, size, world_size, (0, 1)) for size in sizes]
    again = sizes if "shuffles" in subject.traits else ()
    later = {size: _run(subject, size, world_size, (1,)) for size in again}
    judges = _judges(subject, later)
    applicable = [check for check in checks_for(subject) if check.obstacle(subject) is None]
    judged = [check for check in applicable if check.id in judges]
    for check in judged:
        violations = judge_each(runs, judges[check.id])
        if violations:
            raise GuaranteeError(_text(check, subject, world_size, violations))
    return tuple(check.id for check in judged)


def _judges(subject: Delivering, later: dict[int, Run]) -> dict[str, Judge]:
    return {
        "SMP-01": judge_coverage_of(subject),
        "SMP-02": unless_refused(lambda run: judge.judge_equal_batches(run.history)),
        "SMP-03": unless_refused(lambda run: judge.judge_exactly_once(run.history, run.case.size)),
        "SMP-04": unless_refused(
            lambda run: judge.judge_order_repeats(run.history, later[run.case.size].history)
        ),
    }


def _run(subject: Delivering, size: int, world_size: int, epochs: Sequence[int]) -> Run:
    with tempfile.TemporaryDirectory(prefix="ddp-simulation-") as name:
        cases = [Case(size, rank, world_size, Path(name)) for rank in range(world_size)]
        if subject.prepare is not None:
            subject.prepare(cases[0])
        records = tuple(seen for case in cases for seen in _one_rank(subject, case, epochs))
        return Run(cases[0], records)


def _one_rank(subject: Delivering, case: Case, epochs: Sequence[int]) -> Iterator[Record]:
    nemesis.scatter("simulation", case.rank)
    yield from deliveries(subject, case, epochs)


def _text(
    check: Check, subject: Delivering, world_size: int, violations: Sequence[Violation]
) -> str:
    return (
        f"{check.id}: {check.guarantee.statement}\n"
        f"{subject.name} breaks it on {world_size} simulated ranks:\n{listing(violations)}"
    )
