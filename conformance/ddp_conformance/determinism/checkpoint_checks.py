"""DET-08: what saving a checkpoint does to the run that saves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ddp_conformance.determinism import judge_checkpoints
from ddp_conformance.determinism.checkpoints import files_of
from ddp_conformance.determinism.history import LoopSaved
from ddp_conformance.determinism.loops import checkpoint_in
from ddp_conformance.determinism.runs import EPOCHS, LoopOnRanks, record_legs, repeated
from ddp_conformance.determinism.subjects import Leg, TrainLoop
from ddp_conformance.framework.case import Case
from ddp_conformance.framework.history import Record
from ddp_conformance.framework.ranks import Ranks
from ddp_conformance.framework.recording import judge_each
from ddp_conformance.framework.registry import Check, Guarantee
from ddp_conformance.framework.verdict import UndecidedError, Violation

DET_08 = Guarantee("DET-08", "Saving MUST NOT change the run that saves.", tier=2)

SAVED_AT = (0, 1)
"""Steps: before the first, optimizers have no state yet."""


def saving(subject: TrainLoop, case: Case, ranks: Ranks) -> Iterator[Record]:
    """Run the loop whole, with a checkpoint before its first step, and one after it.

    It finds the random states of the run that never saves: saving alone is different.
    """
    save_at = {step: checkpoint_in(case, f"step {step}") for step in SAVED_AT}
    loop = LoopOnRanks(subject, case, ranks)
    yield from loop.run("saving", Leg(EPOCHS, save_at=save_at), turn=1)
    if case.rank == 0:
        for step, path in save_at.items():
            yield LoopSaved(0, "saving", f"save_at[{step}]", len(files_of(path)))


def find_changes_by_saving(subject: TrainLoop, ranks: Ranks) -> tuple[Violation, ...]:
    """DET-08."""
    (plain,) = record_legs(subject, ranks, repeated)
    (run,) = record_legs(subject, ranks, saving)
    if why := judge_checkpoints.unsaved(run.history):
        raise UndecidedError(f"{subject.name} {why}", [why])
    both = replace(run, history=(*plain.history, *run.history))
    return judge_each([both], lambda run: judge_checkpoints.judge_saving(run.history))


KINDS = (TrainLoop,)

CHECKS = (Check(DET_08, KINDS, find_changes_by_saving, needs=frozenset({"resumes"})),)
