"""How often a training loop is run for its checks, and how: each way once for all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

from ddp_conformance.determinism.history import LoopStep
from ddp_conformance.determinism.loops import (
    alone,
    checkpoint_in,
    device_memory,
    memory_in_use,
    run_leg,
    try_leg,
)
from ddp_conformance.determinism.subjects import Leg, TrainLoop
from ddp_conformance.framework.case import Case
from ddp_conformance.framework.groups import GroupOfTries
from ddp_conformance.framework.history import Record, Run
from ddp_conformance.framework.ranks import Ranks
from ddp_conformance.framework.recording import cases_of, on_all, record_once

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
        """Call the loop on all ranks, and wait until it has returned on all of them."""
        self._group.begin_try()
        return on_all(self._ranks, lambda: run_leg(self._subject, self._case, run, leg, turn))

    def attempt(self, run: str, leg: Leg, turn: int) -> list[Record]:
        """Call the loop on all ranks, which may refuse; no rank waits for one that raises."""
        self._group.begin_try()
        raised: list[bool] = []

        def tell(own: bool) -> None:
            raised.extend(self._ranks.gather(own))

        records = try_leg(self._subject, self._case, run, leg, turn, tell)
        if any(raised):
            self._group.give_up()
        return records


class LoopAlone:
    """A loop on rank 0 by itself; all ranks call the methods, and wait for it."""

    def __init__(self, subject: TrainLoop, case: Case, ranks: Ranks) -> None:
        self._subject = subject
        self._case = Case(case.size, 0, 1, case.directory, case.num_workers)
        self._ranks = ranks

    def run(self, run: str, leg: Leg, turn: int) -> list[Record]:
        """Call the loop on rank 0; the others have no records."""

        def act() -> list[Record]:
            if self._ranks.rank != 0:
                return []
            with alone():
                return run_leg(self._subject, self._case, run, leg, turn)

        return on_all(self._ranks, act)

    def attempt(self, run: str, leg: Leg, turn: int) -> list[Record]:
        """Call the loop on rank 0, which may refuse; the others have no records."""
        records: list[Record] = []
        if self._ranks.rank == 0:
            with alone():
                records = try_leg(self._subject, self._case, run, leg, turn, lambda raised: None)
        self._ranks.gather(None)
        return records


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
    yield from LoopAlone(subject, case, ranks).run("alone", Leg(EPOCHS), turn=5)


def parts_of(subject: TrainLoop) -> tuple[str, ...]:
    """The places at which a run of this subject is interrupted."""
    return (EPOCH_END, MID_EPOCH) if "resumes_mid_epoch" in subject.traits else (EPOCH_END,)
