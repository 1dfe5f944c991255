"""DET-07 and DET-08: checkpoints that lack a file, and what saving does to the run that saves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ddp_conformance.determinism import judge_checkpoints
from ddp_conformance.determinism.checkpoints import KeptCheckpoint, files_of
from ddp_conformance.determinism.history import LoopSaved
from ddp_conformance.determinism.judge_checkpoints import RESUMED, WITHOUT, WITHOUT_ANY
from ddp_conformance.determinism.loops import checkpoint_in
from ddp_conformance.determinism.runs import (
    EPOCH_END,
    EPOCHS,
    LoopOnRanks,
    record_legs,
    repeated,
)
from ddp_conformance.determinism.subjects import Leg, TrainLoop
from ddp_conformance.framework.case import Case
from ddp_conformance.framework.history import Record
from ddp_conformance.framework.ranks import Ranks
from ddp_conformance.framework.recording import judge_each
from ddp_conformance.framework.registry import Check, Guarantee
from ddp_conformance.framework.verdict import UndecidedError, Violation

DET_07 = Guarantee(
    "DET-07",
    "A checkpoint that lacks a file MUST be refused by all ranks, or make no difference.",
    tier=2,
)
DET_08 = Guarantee("DET-08", "Saving MUST NOT change the run that saves.", tier=2)

SAVED_AT = (0, 1, 2)
"""Steps: before the first, optimizers have no state yet; after it, averages of weights are often
the weights, as torch's ``AveragedModel`` copies them at its first update."""


def incomplete(subject: TrainLoop, case: Case, ranks: Ranks) -> Iterator[Record]:
    """Save after an epoch, and resume with all files; then without one, and at last without any.

    All resumptions find the same random states: the file alone is different.
    """
    path, loop = checkpoint_in(case, EPOCH_END), LoopOnRanks(subject, case, ranks)
    yield from loop.run("saved", Leg(1, save=path), turn=3)
    kept = KeptCheckpoint(path) if case.rank == 0 else None
    number, some = ranks.gather((len(kept.files), kept.some_files()) if kept else None)[0]
    yield LoopSaved(case.rank, "saved", "save", number)
    if number == 0:
        return
    leg = Leg(EPOCHS, resume=path)
    yield from loop.run(RESUMED, leg, turn=4)
    missing = {f"{WITHOUT}{file}": file for file in some}
    if number > 1:
        missing[WITHOUT_ANY] = ""
    for run, file in missing.items():
        if kept is not None:
            kept.leave_out(file)
        ranks.gather(None)
        yield from loop.attempt(run, leg, turn=4)


def find_loads_of_incomplete(subject: TrainLoop, ranks: Ranks) -> tuple[Violation, ...]:
    """Check DET-07."""
    runs = record_legs(subject, ranks, incomplete)
    (run,) = runs
    if why := judge_checkpoints.unsaved(run.history):
        raise UndecidedError(f"{subject.name} {why}", [why])
    found = judge_each(runs, lambda run: judge_checkpoints.judge_incomplete(run.history))
    if not found and (why := judge_checkpoints.unread(run.history)):
        raise UndecidedError(f"{subject.name} {why}", [why])
    return found


def saving(subject: TrainLoop, case: Case, ranks: Ranks) -> Iterator[Record]:
    """Run the loop whole, with checkpoints before its first step, after it and after the next.

    It finds the random states of the run that never saves: saving alone is different.
    """
    save_at = {step: checkpoint_in(case, f"step {step}") for step in SAVED_AT}
    loop = LoopOnRanks(subject, case, ranks)
    yield from loop.run("saving", Leg(EPOCHS, save_at=save_at), turn=1)
    if case.rank == 0:
        for step, path in save_at.items():
            yield LoopSaved(0, "saving", f"save_at[{step}]", len(files_of(path)))


def find_changes_by_saving(subject: TrainLoop, ranks: Ranks) -> tuple[Violation, ...]:
    """Check DET-08."""
    (plain,) = record_legs(subject, ranks, repeated)
    (run,) = record_legs(subject, ranks, saving)
    if why := judge_checkpoints.unsaved(run.history):
        raise UndecidedError(f"{subject.name} {why}", [why])
    both = replace(run, history=(*plain.history, *run.history))
    return judge_each([both], lambda run: judge_checkpoints.judge_saving(run.history))


KINDS = (TrainLoop,)

RESUMES = frozenset({"resumes"})

CHECKS = (
    Check(DET_07, KINDS, find_loads_of_incomplete, needs=RESUMES),
    Check(DET_08, KINDS, find_changes_by_saving, needs=RESUMES),
)
