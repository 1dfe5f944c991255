"""DET, MEM-05 and MEM-06: what a training loop does when it is run again.

A loop is run whole, once more, in parts that are saved and resumed, and by one process
alone. It finds other random states in every run and on every rank, so that results differ
if they depend on a state that the loop does not seed or restore. What checkpoints hold is checked
in :mod:`.elsewhere` and :mod:`.checkpoint_checks`.
"""

from __future__ import annotations

from ddp_conformance.determinism import checkpoint_checks, elsewhere, judge
from ddp_conformance.determinism.runs import (
    SIZE,
    beside_one,
    parts_of,
    record_legs,
    repeated,
    resumed,
)
from ddp_conformance.determinism.subjects import TrainLoop, terms_of
from ddp_conformance.framework.history import Run
from ddp_conformance.framework.ranks import Ranks
from ddp_conformance.framework.recording import judge_each
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


def find_difference(subject: TrainLoop, ranks: Ranks) -> tuple[Violation, ...]:
    """Check DET-01."""
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
    """Check DET-03."""
    (run,) = record_legs(subject, ranks, resumed)
    return tuple(
        violation
        for part in parts_of(subject)
        for violation in judge.judge_random_states(run.history, part)
    )


def find_other_losses(subject: TrainLoop, ranks: Ranks) -> tuple[Violation, ...]:
    """Check DET-04."""
    runs = record_legs(subject, ranks, beside_one)
    return judge_each(runs, lambda run: judge.judge_same_losses(run.history, subject.tolerance))


def find_bad_seeds(subject: TrainLoop, ranks: Ranks) -> tuple[Violation, ...]:
    """Check DET-05."""
    terms = terms_of(subject)
    runs = record_legs(subject, ranks, repeated)
    return judge_each(runs, lambda run: judge.judge_seeds(run.history, SIZE, terms))


def find_foreign_memory(subject: TrainLoop, ranks: Ranks) -> tuple[Violation, ...]:
    """Check MEM-05."""
    runs = record_legs(subject, ranks, repeated)
    return judge_each(runs, lambda run: judge.judge_own_device(run.history))


def find_shared_modules(subject: TrainLoop, ranks: Ranks) -> tuple[Violation, ...]:
    """Check MEM-06."""
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
    elsewhere.CHECK,
    *checkpoint_checks.CHECKS,
    Check(MEM_05, KINDS, find_foreign_memory, needs=frozenset({"gpu"})),
    Check(MEM_06, KINDS, find_shared_modules),
)
