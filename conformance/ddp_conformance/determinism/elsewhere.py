"""DET-06: runs that are saved on one number of ranks, and resumed on another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from ddp_conformance.determinism import judge_moves
from ddp_conformance.determinism.checkpoints import KeptCheckpoint
from ddp_conformance.determinism.history import LoopRounding, LoopSaved, LoopStep
from ddp_conformance.determinism.judge_checkpoints import unsaved
from ddp_conformance.determinism.judge_moves import Move
from ddp_conformance.determinism.loops import alone, checkpoint_in, final_parameters
from ddp_conformance.determinism.runs import (
    EPOCH_END,
    EPOCHS,
    SIZE,
    LoopAlone,
    LoopOnRanks,
    parts_of,
    record_legs,
    repeated,
)
from ddp_conformance.determinism.subjects import Leg, TrainLoop, terms_of
from ddp_conformance.framework.case import Case
from ddp_conformance.framework.failures import failures
from ddp_conformance.framework.history import Record, Run
from ddp_conformance.framework.ranks import Ranks
from ddp_conformance.framework.recording import judge_each
from ddp_conformance.framework.registry import Check, Guarantee, remark
from ddp_conformance.framework.verdict import UndecidedError, Violation
from pytest_ddp.extensions.worlds.parity import ROUNDING_RUNS

DET_06 = Guarantee(
    "DET-06",
    "A run that is saved on one number of ranks MUST go on elsewhere as the same run, or be "
    "refused by all ranks before its first step.",
)


def moves_of(subject: TrainLoop, world_size: int) -> list[Move]:
    """Moves from all ranks to rank 0 alone and back, wherever the loop can be interrupted."""
    sizes = dict.fromkeys([(world_size, 1), (1, world_size)])
    return [Move(part, *pair) for part in parts_of(subject) for pair in sizes]


def moved(subject: TrainLoop, case: Case, ranks: Ranks) -> Iterator[Record]:
    """Save on all ranks and resume on rank 0 alone, and the other way round."""
    together, alone_ = LoopOnRanks(subject, case, ranks), LoopAlone(subject, case, ranks)
    steps: dict[int, int] = {}
    for move in moves_of(subject, ranks.world_size):
        to_one = move.before == ranks.world_size
        before, after = (together, alone_) if to_one else (alone_, together)
        path = checkpoint_in(case, move.resumed)
        leg = Leg(1) if move.part == EPOCH_END else Leg(EPOCHS, steps[move.before] * 3 // 2)
        records = before.run(move.saved, replace(leg, save=path), turn=3)
        made = sum(isinstance(record, LoopStep) for record in records)
        steps.setdefault(move.before, max(ranks.gather(made)))
        yield from records
        kept = KeptCheckpoint(path) if case.rank == 0 else None
        if kept is not None:
            yield LoopSaved(0, move.saved, "save", len(kept.files))
        yield from after.attempt(move.resumed, Leg(EPOCHS, resume=path), turn=4)
        if to_one and move.part == EPOCH_END:
            if kept is not None and kept.files:
                kept.leave_out("")
            yield from alone_.attempt(move.emptied, Leg(EPOCHS, resume=path), turn=4)


def rounding(subject: TrainLoop, case: Case, ranks: Ranks) -> Iterator[Record]:
    """How far rounding moves the final parameters of rank 0 alone; nothing if no one can say."""
    if case.rank != 0:
        return
    # Late, as few runs need it.
    from pytest_ddp.extensions.worlds.ranks.rounding import MonteCarloRounding

    single = Case(case.size, 0, 1, case.directory, case.num_workers)
    final = partial(final_parameters, subject, single, Leg(EPOCHS), 5)
    with alone():
        plain, again = final(), final()
        if not _equal(plain, again):
            return  # it is another run each time, whose differences are no limit
        further = []
        for number in range(ROUNDING_RUNS):
            try:
                with MonteCarloRounding(number + 1):
                    further.append(final())
            except failures():  # from the subject's code, such as a compiled model's
                return
    yield LoopRounding(0, tuple(_distances(plain, further)))


def _equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(t, other[name]) for name, t in one.items()
    )


def _distances(
    plain: dict[str, Tensor], further: list[dict[str, Tensor]]
) -> Iterator[tuple[str, float]]:
    for name, tensor in plain.items():
        found = [(run[name] - tensor).norm() for run in further if name in run]
        finite = [float(distance) for distance in found if distance.isfinite()]
        yield name, max(finite, default=0.0)


def find_other_runs(subject: TrainLoop, ranks: Ranks) -> tuple[Violation, ...]:
    """DET-06; rounding is measured only where the final parameters are farther off than usual."""
    (run,) = record_legs(subject, ranks, moved)
    moves = moves_of(subject, ranks.world_size)
    why = unsaved(run.history) or judge_moves.opens_nothing(run.history, moves)
    if why:
        raise UndecidedError(f"{subject.name} {why}", [why])
    refused = [move.resumed for move in moves if judge_moves.is_refused(run.history, move)]
    if refused:
        remark("refused" if len(refused) == len(moves) else f"refused: {'; '.join(refused)}")
    global_batch = "global_batch" in subject.traits
    if global_batch:
        run = _with(run, *record_legs(subject, ranks, repeated))
    terms = terms_of(subject)

    def judge(run: Run) -> tuple[Violation, ...]:
        found = (judge_moves.judge_move(run.history, move, SIZE, terms) for move in moves)
        return tuple(violation for each in found for violation in each)

    def judge_ends(run: Run) -> tuple[Violation, ...]:
        return tuple(v for move in moves for v in judge_moves.judge_end(run.history, move))

    found = judge_each([run], judge)
    if found or not global_batch or not judge_ends(run):
        return found
    return judge_each([_with(run, *record_legs(subject, ranks, rounding))], judge_ends)


def _with(run: Run, other: Run) -> Run:
    return replace(run, history=(*run.history, *other.history))


CHECK = Check(DET_06, (TrainLoop,), find_other_runs, needs=frozenset({"resumes_elsewhere"}))
