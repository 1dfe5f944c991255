"""MOD-01 to MOD-11: a wrapped model and its optimizer step, compared with one process.

The steps run in processes of their own: if ranks disagree, a model may hang or end them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from ddp_conformance.framework.history import History, Run
from ddp_conformance.framework.ranks import Ranks
from ddp_conformance.framework.recording import cases_of, record
from ddp_conformance.framework.registry import Check, Guarantee
from ddp_conformance.framework.verdict import UndecidedError, Violation
from ddp_conformance.launched.endings import came_through, in_order, words_of
from ddp_conformance.launched.journal import Journal
from ddp_conformance.launched.order import Named, Order, Work
from ddp_conformance.launched.rank_devices import devices_of
from ddp_conformance.launched.start.launch import Limits
from ddp_conformance.lifecycle.training_runs import launched
from ddp_conformance.model import (
    judge,
    judge_buffers,
    judge_decisions,
    judge_reductions,
    judge_statistics,
    judge_updates,
)
from ddp_conformance.model.subjects import TrainStep

MOD_01 = Guarantee(
    "MOD-01",
    "After every step the parameters MUST be bit-equal on all ranks.",
)
MOD_02 = Guarantee(
    "MOD-02",
    "Gradients MUST equal those of one process on the samples of all ranks.",
)
MOD_03 = Guarantee(
    "MOD-03",
    "Parameters and buffers MUST be equal on all ranks right after wrapping, even if the ranks "
    "are seeded differently.",
)
MOD_04 = Guarantee(
    "MOD-04",
    "Buffers MUST be equal on all ranks whenever the model is evaluated or saved.",
    tier=2,
)
MOD_05 = Guarantee(
    "MOD-05",
    "Parameters without a gradient MUST be declared, and with a static graph the used ones MUST "
    "stay the same.",
)
MOD_06 = Guarantee(
    "MOD-06",
    "A forward pass MUST NOT write parameters.",
)
MOD_07 = Guarantee(
    "MOD-07",
    "With accumulation, gradients MUST be reduced in the last backward pass of a step and in no "
    "other, and then equal those of the large batch.",
)
MOD_08 = Guarantee(
    "MOD-08",
    "Whether a step is skipped, the scale of its loss and the norm of its gradients MUST be the "
    "same on all ranks, and those of one process on the samples of all ranks.",
    tier=2,
)
MOD_09 = Guarantee(
    "MOD-09",
    "Running statistics of a synchronised normalisation MUST equal those of one process on the "
    "samples of all ranks.",
    tier=3,
)

MOD_10 = Guarantee(
    "MOD-10",
    "In each step every element of a rank's gradients MUST be reduced with those of every other "
    "rank exactly once.",
    tier=2,
)

MOD_11 = Guarantee(
    "MOD-11",
    "After each step the parameters MUST be those that one process's optimizer makes of the same "
    "parameters, state and gradients.",
    tier=2,
)

PATIENCE = 10.0
"""Seconds that the other ranks have when one has failed."""


MEASURES = "measures"
"""Argument of :func:`take_steps`."""

Take: TypeAlias = Callable[[Order, Journal], None]


def take_steps(order: Order, journal: Journal) -> None:
    """Only in a launched rank: its server has imported torch's compiler and FSDP, 1.2 s of CPU."""
    from ddp_conformance.model import alone

    alone.take_steps(order, journal)


def take_coded_steps(order: Order, journal: Journal) -> None:
    """Train on all ranks, with codes in place of gradients."""
    from ddp_conformance.model import coding

    coding.take_coded_steps(order, journal)


def runs_of(subject: TrainStep, ranks: Ranks, take: Take = take_steps) -> list[Run]:
    """One run with equal shares, and with the trait ``uneven`` one with unequal ones."""
    world_size = ranks.world_size
    sizes = [4 * world_size, *([4 * world_size - 1] if "uneven" in subject.traits else [])]
    return [run_of(subject, ranks, size, take) for size in sizes]


def run_of(subject: TrainStep, ranks: Ranks, size: int, take: Take = take_steps) -> Run:
    """The steps on all ranks, and by default on one process alone.

    That one measures what rounding does, unless the subject states its tolerance.
    """
    measures = (MEASURES,) if subject.tolerance is None else ()
    work = Work(
        does=Named.of(take),
        entry=Named.of(subject.make),
        argv=(str(size), str(subject.steps), *(measures if take is take_steps else ())),
        devices=devices_of(ranks),
    )
    limits = Limits(subject.timeout, PATIENCE)
    (run,) = record(
        subject, ranks, cases_of(ranks, (size,)), lambda s, case: launched(work, case, limits)
    )
    return run


def judged(
    subject: TrainStep,
    ranks: Ranks,
    look: Callable[[History], Sequence[Violation]],
    take: Take = take_steps,
) -> list[Violation]:
    """The violations of all runs; a run that breaks off is judged by its records until then."""
    found: list[Violation] = []
    for run in runs_of(subject, ranks, take):
        seen = [replace(violation, case=run.case.label) for violation in look(run.history)]
        if not seen and not came_through(run.history):
            ends = "; ".join(words_of(end) for end in in_order(run.history) if not end.returned)
            raise UndecidedError(f"{subject.name} broke off: {ends}")
        found += seen
    return found


def find_divergence(subject: TrainStep, ranks: Ranks) -> Sequence[Violation]:
    """Check MOD-01."""
    return judged(subject, ranks, judge.judge_equal_after_steps)


def find_wrong_gradients(subject: TrainStep, ranks: Ranks) -> Sequence[Violation]:
    """Check MOD-02."""
    return judged(subject, ranks, lambda history: _beside_one(subject, ranks, history))


def _beside_one(subject: TrainStep, ranks: Ranks, history: History) -> Sequence[Violation]:
    """Gradients that differ from one process's, unless the model rightly makes them differ."""
    found = judge.judge_gradients(history, subject.limit)
    if found:
        demand_comparison(subject, ranks, history)
    else:
        demand_equal_overflows(subject, history)
    if found and judge.gradients_unseen(history):
        raise UndecidedError(
            f"{subject.name} steps without an optimizer, and its gradients are gone when step() "
            "returns: keep them until then, or step with a torch.optim.Optimizer",
            [str(found[0])],
        )
    return found


def demand_comparison(subject: TrainStep, ranks: Ranks, history: History) -> None:
    """Raise :class:`UndecidedError` for a model that one process rightly trains differently."""
    unlike = judge.unlike_one_process(history)
    if unlike is None:
        return
    if unlike.kind == "Dropout":
        raise UndecidedError(
            f"{subject.name} has dropout in {unlike.module}, which draws other numbers in one "
            "process: use p=0 here"
        )
    if ranks.world_size > 1 and "sync_batchnorm" not in subject.traits:
        raise UndecidedError(
            f"{subject.name} normalises by each rank's own samples in {unlike.module}, which one "
            "process cannot do: if it is intended, declare the trait 'batch_statistics' and reason="
        )


def demand_equal_overflows(subject: TrainStep, history: History) -> None:
    """Raise :class:`UndecidedError` where a gradient scaler skips other steps than in one process.

    It may rightly do so, and a NaN on some rank looks the same.
    """
    step = judge.overflowed_apart(history)
    if step is not None:
        raise UndecidedError(
            f"{subject.name} has a gradient scaler that finds an overflow in step {step} on all "
            "ranks or in one process alone, which is right for a scale at the limit: make the "
            "scaler with a smaller init_scale here, such as 2.0**8, so that no step overflows"
        )


def find_different_starts(subject: TrainStep, ranks: Ranks) -> Sequence[Violation]:
    """Check MOD-03."""
    return judged(subject, ranks, judge.judge_equal_after_wrapping)


def find_different_buffers(subject: TrainStep, ranks: Ranks) -> Sequence[Violation]:
    """Check MOD-04."""
    return judged(subject, ranks, judge_buffers.judge_equal_buffers)


def find_undeclared_use(subject: TrainStep, ranks: Ranks) -> Sequence[Violation]:
    """Check MOD-05."""
    return judged(subject, ranks, lambda h: judge.judge_use(h, subject.traits))


def find_writes(subject: TrainStep, ranks: Ranks) -> Sequence[Violation]:
    """Check MOD-06."""
    return judged(subject, ranks, judge.judge_no_writes)


def find_wrong_accumulation(subject: TrainStep, ranks: Ranks) -> Sequence[Violation]:
    """MOD-07. A single process has nothing to reduce."""

    def look(history: History) -> Sequence[Violation]:
        reductions = judge.judge_accumulation(history) if ranks.world_size > 1 else ()
        if reductions or "batch_statistics" in subject.traits:
            return reductions
        return _beside_one(subject, ranks, history)

    return judged(subject, ranks, look)


def find_different_decisions(subject: TrainStep, ranks: Ranks) -> Sequence[Violation]:
    """Check MOD-08."""

    def look(history: History) -> Sequence[Violation]:
        apart = judge_decisions.judge_decisions(history, subject.limit, between_ranks=True)
        if apart or "batch_statistics" in subject.traits:
            return apart
        found = judge_decisions.judge_decisions(history, subject.limit)
        if found:
            demand_comparison(subject, ranks, history)
        else:
            demand_equal_overflows(subject, history)
        return found

    return judged(subject, ranks, look)


def find_wrong_statistics(subject: TrainStep, ranks: Ranks) -> Sequence[Violation]:
    """Check MOD-09."""
    return judged(subject, ranks, lambda h: judge_statistics.judge_statistics(h, subject.limit))


def find_repeated_reductions(subject: TrainStep, ranks: Ranks) -> Sequence[Violation]:
    """MOD-10. A single process has nothing to reduce."""

    def look(history: History) -> Sequence[Violation]:
        if came_through(history) and not judge_reductions.is_coded(history):
            raise UndecidedError(
                f"{subject.name} has no gradient that a code could stand in for: dense ones of "
                "float32 or float64 that are no DTensors"
            )
        return judge_reductions.judge_reductions(history)

    return judged(subject, ranks, look, take_coded_steps) if ranks.world_size > 1 else ()


def find_other_updates(subject: TrainStep, ranks: Ranks) -> Sequence[Violation]:
    """Check MOD-11."""

    def look(history: History) -> Sequence[Violation]:
        found = judge_updates.judge_updates(history)
        why = judge_updates.update_unknown(history)
        if why and not found and came_through(history):
            raise UndecidedError(f"{subject.name} {why}")
        return found

    return judged(subject, ranks, look)


CHECKS = (
    Check(MOD_01, (TrainStep,), find_divergence),
    Check(MOD_02, (TrainStep,), find_wrong_gradients, excused=frozenset({"batch_statistics"})),
    Check(MOD_03, (TrainStep,), find_different_starts),
    Check(MOD_04, (TrainStep,), find_different_buffers, needs=frozenset({"buffers"})),
    Check(MOD_05, (TrainStep,), find_undeclared_use),
    Check(MOD_06, (TrainStep,), find_writes),
    Check(MOD_07, (TrainStep,), find_wrong_accumulation, needs=frozenset({"accumulates"})),
    Check(MOD_08, (TrainStep,), find_different_decisions, needs=frozenset({"decides"})),
    Check(MOD_09, (TrainStep,), find_wrong_statistics, needs=frozenset({"sync_batchnorm"})),
    Check(MOD_10, (TrainStep,), find_repeated_reductions, needs=frozenset({"reduces_once"})),
    Check(MOD_11, (TrainStep,), find_other_updates),
)
