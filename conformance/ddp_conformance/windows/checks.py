"""WIN and CBK-03: data that change between epochs, as they reach the model.

Lightning's Trainer runs each subject, in the ranks of the test, because the defects come from
the order of its hooks: it builds the loader and its iterator before
``on_train_epoch_start``, and validates once before the first epoch. A version counter is no
evidence; the stamps of the delivered samples are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from ddp_conformance.framework import nemesis
from ddp_conformance.framework.case import Case
from ddp_conformance.framework.history import Record, Run
from ddp_conformance.framework.ranks import Ranks
from ddp_conformance.framework.recording import Judge, cases_of, find_first, judge_each, record_once
from ddp_conformance.framework.registry import Check, Guarantee
from ddp_conformance.framework.verdict import Violation
from ddp_conformance.windows import judge, worker_ranks
from ddp_conformance.windows.subjects import DataModule

SANITY_STEPS = 2

WIN_01 = Guarantee(
    "WIN-01",
    "Every sample that any rank and any worker delivers in an epoch MUST come from the window "
    "in force for that epoch.",
    starred=True,
)
WIN_02 = Guarantee(
    "WIN-02",
    "After a window change the summary, the name list, the data set and the loader MUST be new "
    "objects.",
    starred=True,
)
WIN_03 = Guarantee(
    "WIN-03",
    "The version counter MUST equal the version of the data that are delivered while it shows "
    "that value, and one version MUST NOT stand for two builds.",
)
WIN_04 = Guarantee("WIN-04", "All ranks MUST use the same window in the same epoch.")
WIN_05 = Guarantee(
    "WIN-05",
    "The loader in use MUST NOT be rebuilt, nor setup() be called, between the start of an epoch "
    "and its last batch.",
)
WIN_07 = Guarantee(
    "WIN-07",
    "Validation data that are declared fixed MUST be the same in all epochs, over all ranks.",
)
WIN_08 = Guarantee(
    "WIN-08",
    "A sanity check MUST NOT advance windows or versions, and every window that is announced "
    "MUST be used.",
)
CBK_03 = Guarantee(
    "CBK-03",
    "A callback that changes the data MUST take effect in the epoch that it is meant for, on "
    "all ranks.",
)


def uneven_size(ranks: Ranks) -> tuple[int]:
    """A size not divisible by the ranks; cut into parts of one length, it leaves none of 4 ranks
    empty.
    """
    return (3 * ranks.world_size + 1,)


def record_fits(
    subject: DataModule, ranks: Ranks, workers: int, sanity_steps: int = SANITY_STEPS
) -> tuple[Run, ...]:
    """One run of a few epochs on uneven shards, for eight guarantees."""
    cases = cases_of(ranks, uneven_size(ranks), (workers,))
    way = f"a fit after {sanity_steps} steps of sanity checking"
    return record_once(subject, ranks, cases, lambda s, case: _fit(s, case, sanity_steps), way)


def judge_fits(subject: DataModule, ranks: Ranks, judge_run: Judge) -> tuple[Violation, ...]:
    """The violations of a run without workers; without any, of one with two and no sanity check.

    Without it because each loader starts its workers anew, which is most of the time.
    """
    found = judge_each(record_fits(subject, ranks, 0), judge_run)
    return found or judge_each(record_fits(subject, ranks, 2, sanity_steps=0), judge_run)


def _fit(subject: DataModule, case: Case, sanity_steps: int, **options: Any) -> Iterator[Record]:
    from ddp_conformance.windows.trainer_runs import observe_fit

    # Different on each rank, as after a start without seeds, and equal in every run.
    nemesis.scatter("a run of the Trainer", case.rank)
    yield from observe_fit(subject, case, sanity_steps, **options)


def find_stale(subject: DataModule, ranks: Ranks) -> tuple[Violation, ...]:
    """WIN-01, also with a worker that persists, and with one that is spawned."""

    def judge_run(run: Run) -> Sequence[Violation]:
        return judge.judge_in_force(run.history)

    cases = worker_cases(ranks) if "any_workers" in subject.traits else []
    found = judge_fits(subject, ranks, judge_run)
    return found or find_first(subject, ranks, cases, _short_fit, judge_run)


def worker_cases(ranks: Ranks) -> list[Case]:
    """One persistent worker by fork; and one by spawn, which imports torch for each loader.

    Persistent as well, because the Trainer makes two iterators of a new loader.
    """
    (case,) = cases_of(ranks, uneven_size(ranks), (1,))
    forked = replace(case, start_method="fork", persistent_workers=True)
    spawned = replace(forked, start_method="spawn")
    return [forked, spawned] if ranks.world_size == 2 else [forked]


def _short_fit(subject: DataModule, case: Case) -> Iterator[Record]:
    """A run of two epochs without validation."""
    return _fit(subject, case, 0, max_epochs=2, limit_val_batches=0)


def find_kept_objects(subject: DataModule, ranks: Ranks) -> tuple[Violation, ...]:
    """Check WIN-02."""
    return judge_fits(subject, ranks, lambda run: judge.judge_fresh(run.history))


def find_wrong_counter(subject: DataModule, ranks: Ranks) -> tuple[Violation, ...]:
    """Check WIN-03."""
    return judge_fits(subject, ranks, lambda run: judge.judge_counter(run.history))


def find_different_windows(subject: DataModule, ranks: Ranks) -> tuple[Violation, ...]:
    """Check WIN-04."""
    return judge_fits(subject, ranks, lambda run: judge.judge_same_windows(run.history))


def find_disturbance(subject: DataModule, ranks: Ranks) -> tuple[Violation, ...]:
    """Check WIN-05."""
    return judge_fits(subject, ranks, lambda run: judge.judge_undisturbed(run.history))


def find_moved_validation(subject: DataModule, ranks: Ranks) -> tuple[Violation, ...]:
    """Check WIN-07."""
    return judge_fits(subject, ranks, lambda run: judge.judge_fixed_validation(run.history))


def find_sanity_effect(subject: DataModule, ranks: Ranks) -> tuple[Violation, ...]:
    """WIN-08: a run with a sanity check against one without."""
    with_sanity = record_fits(subject, ranks, workers=0)
    without = record_fits(subject, ranks, workers=0, sanity_steps=0)
    return (
        *judge_each(with_sanity, lambda run: judge.judge_all_used(run.history)),
        *judge_each(
            with_sanity, lambda run: judge.judge_same_schedule(without[0].history, run.history)
        ),
    )


def find_late_effect(subject: DataModule, ranks: Ranks) -> tuple[Violation, ...]:
    """Check CBK-03."""
    schedule = subject.schedule
    assert schedule is not None, "the trait 'scheduled' comes with a schedule"

    def judge_run(run: Run) -> Sequence[Violation]:
        return judge.judge_schedule(run.history, schedule)

    return judge_fits(subject, ranks, judge_run)


KINDS = (DataModule,)

CHECKS = (
    *worker_ranks.CHECKS,
    Check(WIN_01, KINDS, find_stale),
    Check(WIN_02, KINDS, find_kept_objects),
    Check(WIN_03, KINDS, find_wrong_counter),
    Check(WIN_04, KINDS, find_different_windows),
    Check(WIN_05, KINDS, find_disturbance),
    Check(WIN_07, KINDS, find_moved_validation, needs=frozenset({"fixed_validation"})),
    Check(WIN_08, KINDS, find_sanity_effect),
    Check(CBK_03, KINDS, find_late_effect, needs=frozenset({"scheduled"})),
)
