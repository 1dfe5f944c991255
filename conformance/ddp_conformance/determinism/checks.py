"""DET-01 to DET-05, MEM-05 and MEM-06: what a training loop does when it is run again.

A loop is run whole, once more, in parts that are saved and resumed, and by one process
alone. It finds other random states in every run and on every rank, so that results differ
if they depend on a state that the loop does not seed or restore.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

from ddp_conformance.determinism import judge
from ddp_conformance.determinism.history import LoopStep
from ddp_conformance.determinism.loops import (
    alone,
    checkpoint_in,
    device_memory,
    memory_in_use,
    run_leg,
)
from ddp_conformance.determinism.subjects import Leg, TrainLoop, terms_of
from ddp_conformance.framework.case import Case
from ddp_conformance.framework.groups import GroupOfTries
from ddp_conformance.framework.history import Record, Run
from ddp_conformance.framework.ranks import Ranks
from ddp_conformance.framework.recording import cases_of, judge_each, on_all, record_once
from ddp_conformance.framework.registry import Check, Guarantee
from ddp_conformance.framework.verdict import Violation

DET_01 = Guarantee(
    "DET-01",
    "The same seed and world size MUST give the same samples in the same order and, on the CPU, "
    "parameters that are equal to the last bit.",
)
DET_02 = Guarantee(
    "DET-02",
    "A run that is saved and resumed MUST deliver the samples of the uninterrupted run in the same "
    "order and end with its parameters, with workers and without.",
)
DET_03 = Guarantee(
    "DET-03",
    "The states of the random generators MUST be saved and restored for each rank.",
    tier=2,
)
DET_04 = Guarantee(
    "DET-04",
    "With the same global batch, the losses MUST NOT depend on the number of ranks, within a "
    "tolerance.",
    tier=2,
)
DET_05 = Guarantee(
    "DET-05",
    "Initial parameters and the order of samples MUST come from a seed that all ranks share, and "
    "random numbers for augmentation from one for each rank.",
)
MEM_05 = Guarantee("MEM-05", "Each rank MUST allocate memory on its own device only.", tier=2)
MEM_06 = Guarantee(
    "MEM-06",
    "Modules that a data set holds MUST NOT be the objects that are moved or trained.",
    tier=2,
)

SIZE = 41
"""Samples; no multiple of any world size above 1 that is checked."""
EPOCHS = 2
EPOCHS_AFTER = 2
"""Further epochs at world size 2, after the one in which a run is resumed: a restored state may be
used in later epochs, too."""
EPOCH_END, MID_EPOCH = "epoch end", "mid-epoch"

Observe: TypeAlias = Callable[[TrainLoop, Case, Ranks], Iterator[Record]]


def record_legs(
    subject: TrainLoop, ranks: Ranks, observe: Observe, workers: int = 0
) -> tuple[Run, ...]:
    """Run the loop as ``observe`` does, once for all guarantees that are judged on it."""
    cases = cases_of(ranks, (SIZE,), (workers,))
    way = observe.__name__
    return record_once(subject, ranks, cases, lambda s, case: observe(s, case, ranks), way)


class LoopOnRanks:
    """A loop on all ranks. Each call is a try: the one before may have ended the process group."""

    def __init__(self, subject: TrainLoop, case: Case, ranks: Ranks) -> None:
        self._subject = subject
        self._case = case
        self._ranks = ranks
        self._group = GroupOfTries(ranks)

    def run(self, run: str, leg: Leg, turn: int) -> list[Record]:
        """Call it on all ranks, and wait until it has returned on all of them."""
        self._group.begin_try()
        return on_all(self._ranks, lambda: run_leg(self._subject, self._case, run, leg, turn))


def repeated(subject: TrainLoop, case: Case, ranks: Ranks) -> Iterator[Record]:
    """Run the loop from the first epoch to the last, twice."""
    loop, before = LoopOnRanks(subject, case, ranks), memory_in_use()
    yield from loop.run("whole", Leg(EPOCHS), turn=1)
    yield from device_memory(ranks, before)
    yield from loop.run("again", Leg(EPOCHS), turn=2)


def resumed(subject: TrainLoop, case: Case, ranks: Ranks) -> Iterator[Record]:
    """Run the loop whole; then saved and resumed after an epoch, and in the middle of another."""
    last = EPOCHS + (EPOCHS_AFTER if case.world_size == 2 else 0)
    loop = LoopOnRanks(subject, case, ranks)
    first = loop.run("whole", Leg(last), turn=1)
    yield from first
    yield from in_two(loop, checkpoint_in(case, EPOCH_END), EPOCH_END, Leg(1), last)
    if "resumes_mid_epoch" in subject.traits:
        steps = [step.epoch for step in first if isinstance(step, LoopStep)]
        stop = max(ranks.gather(steps.count(0) + steps.count(1) // 2))
        yield from in_two(loop, checkpoint_in(case, MID_EPOCH), MID_EPOCH, Leg(last, stop), last)


def in_two(loop: LoopOnRanks, path: Path, run: str, leg: Leg, last: int) -> Iterator[Record]:
    """Stop where ``leg`` ends, and go on to the end of the ``last`` epoch in a second call.

    When the first one has returned on all ranks, rank 0's file is there.
    """
    yield from loop.run(run, Leg(leg.epochs, leg.steps, save=path), turn=3)
    yield from loop.run(run, Leg(last, resume=path), turn=4)


def beside_one(subject: TrainLoop, case: Case, ranks: Ranks) -> Iterator[Record]:
    """All ranks together, then rank 0 by itself; a group of one does for both at world size 1."""
    yield from LoopOnRanks(subject, case, ranks).run("whole", Leg(EPOCHS), turn=1)
    if case.rank == 0:
        single = Case(case.size, 0, 1, case.directory, case.num_workers)
        with alone():
            records = run_leg(subject, single, "alone", Leg(EPOCHS), turn=5)
        yield from records


def find_difference(subject: TrainLoop, ranks: Ranks) -> tuple[Violation, ...]:
    """DET-01."""
    runs = record_legs(subject, ranks, repeated)
    return judge_each(runs, lambda run: judge.judge_same_run(run.history, "again"))


def find_bad_resumption(subject: TrainLoop, ranks: Ranks) -> tuple[Violation, ...]:
    """DET-02; with a worker, which takes the longest, only if nothing is found without."""

    def judge_run(run: Run) -> tuple[Violation, ...]:
        return tuple(
            violation
            for part in parts_of(subject)
            for violation in judge.judge_resumption(run.history, part)
        )

    found = judge_each(record_legs(subject, ranks, resumed), judge_run)
    return found or judge_each(record_legs(subject, ranks, resumed, workers=1), judge_run)


def find_lost_states(subject: TrainLoop, ranks: Ranks) -> tuple[Violation, ...]:
    """DET-03."""
    (run,) = record_legs(subject, ranks, resumed)
    return tuple(
        violation
        for part in parts_of(subject)
        for violation in judge.judge_random_states(run.history, part)
    )


def parts_of(subject: TrainLoop) -> tuple[str, ...]:
    """Where a run of this subject is interrupted."""
    return (EPOCH_END, MID_EPOCH) if "resumes_mid_epoch" in subject.traits else (EPOCH_END,)


def find_other_losses(subject: TrainLoop, ranks: Ranks) -> tuple[Violation, ...]:
    """DET-04."""
    runs = record_legs(subject, ranks, beside_one)
    return judge_each(runs, lambda run: judge.judge_same_losses(run.history, subject.tolerance))


def find_bad_seeds(subject: TrainLoop, ranks: Ranks) -> tuple[Violation, ...]:
    """DET-05."""
    terms = terms_of(subject)
    runs = record_legs(subject, ranks, repeated)
    return judge_each(runs, lambda run: judge.judge_seeds(run.history, SIZE, terms))


def find_foreign_memory(subject: TrainLoop, ranks: Ranks) -> tuple[Violation, ...]:
    """MEM-05."""
    runs = record_legs(subject, ranks, repeated)
    return judge_each(runs, lambda run: judge.judge_own_device(run.history))


def find_shared_modules(subject: TrainLoop, ranks: Ranks) -> tuple[Violation, ...]:
    """MEM-06."""
    runs = record_legs(subject, ranks, repeated)
    return judge_each(runs, lambda run: judge.judge_held_modules(run.history))


KINDS = (TrainLoop,)
RESUMES = frozenset({"resumes"})

CHECKS = (
    Check(DET_01, KINDS, find_difference),
    Check(DET_02, KINDS, find_bad_resumption, needs=RESUMES),
    Check(DET_03, KINDS, find_lost_states, needs=RESUMES),
    Check(DET_04, KINDS, find_other_losses, needs=frozenset({"global_batch"})),
    Check(DET_05, KINDS, find_bad_seeds),
    Check(MEM_05, KINDS, find_foreign_memory, needs=frozenset({"gpu"})),
    Check(MEM_06, KINDS, find_shared_modules),
)
