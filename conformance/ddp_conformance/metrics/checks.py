"""MET-01 to MET-06: what is reported of all ranks' samples.

A reported number is compared with the one that a single process computes in float64 from the same
samples; or, if a guarantee is not about right numbers, with the one that the metric itself reports
undisturbed. The ranks get different numbers of samples, batches and samples in a batch. All
collectives run in lockstep, so that ranks that disagree end in a violation and not in a hang.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, TypeAlias

from ddp_conformance.framework.case import Case, sizes
from ddp_conformance.framework.failures import failures
from ddp_conformance.framework.history import Failed, Measured, Record, Run
from ddp_conformance.framework.ranks import Ranks
from ddp_conformance.framework.recording import cases_of, describe, judge_each, record, record_once
from ddp_conformance.framework.registry import Check, Guarantee
from ddp_conformance.framework.verdict import Violation
from ddp_conformance.lockstep.lockstep import Lockstep, in_lockstep
from ddp_conformance.lockstep.same_calls import demand_same_calls, judge_same_calls
from ddp_conformance.metrics import judge
from ddp_conformance.metrics.history import Expected
from ddp_conformance.metrics.subjects import (
    Evaluation,
    Metric,
    rounded_batch,
    signed_batch,
    value_batch,
    values_of,
)

MET_01 = Guarantee(
    "MET-01",
    "A reported epoch metric MUST equal, on all ranks, the value of a single process over the "
    "union of the samples, each with its own weight.",
    starred=True,
)
MET_02 = Guarantee(
    "MET-02",
    "A metric that is no mean over samples MUST be computed from the state of all ranks, not "
    "from the ranks' values.",
    starred=True,
)
MET_03 = Guarantee(
    "MET-03",
    "Samples that were repeated to give all ranks equally many MUST NOT influence a reported "
    "metric.",
)
MET_04 = Guarantee(
    "MET-04",
    "A rank without samples MUST neither hang nor crash the computation of a metric, nor change "
    "its value.",
    tier=2,
)
MET_05 = Guarantee(
    "MET-05",
    "Computing a metric MUST NOT change it, and its value MUST NOT depend on earlier epochs.",
    tier=2,
)
MET_06 = Guarantee(
    "MET-06",
    "All ranks MUST make the same collectives in the same order to report a metric.",
)

BATCH = 3
"""Samples in a batch at most; small, so that the last batches of ranks differ."""

REPORT = "after the pass"

WITHOUT = "the same metric without an empty rank"

Reporting: TypeAlias = Metric | Evaluation

Deal: TypeAlias = Callable[[int, int], list[Sequence[int]]]
"""A function of the numbers of samples and ranks that returns the samples of each rank."""


def in_turn(size: int, world_size: int) -> list[Sequence[int]]:
    """Every world-size-th sample; the ranks' numbers differ by one at most."""
    return [range(rank, size, world_size) for rank in range(world_size)]


def mostly_first(size: int, world_size: int) -> list[Sequence[int]]:
    """All but one sample for each rank go to rank 0."""
    most = size - world_size + 1
    return [range(most), *(range(index, index + 1) for index in range(most, size))]


def batches_in_turn(size: int, world_size: int) -> list[Sequence[int]]:
    """Every world-size-th batch of consecutive samples."""
    batches = [range(start, min(start + BATCH, size)) for start in range(0, size, BATCH)]
    return [list(chain(*batches[rank::world_size])) for rank in range(world_size)]


def batches_mostly_first(size: int, world_size: int) -> list[Sequence[int]]:
    """The batches of consecutive samples, all but one for each rank on rank 0."""
    most = (-(-size // BATCH) - world_size + 1) * BATCH
    others = [range(start, min(start + BATCH, size)) for start in range(most, size, BATCH)]
    return [range(most), *others] if world_size > 1 else [range(size)]


def all_first(size: int, world_size: int) -> list[Sequence[int]]:
    """Rank 0 has every sample, the others none."""
    return [range(size), *[range(0)] * (world_size - 1)]


def all_last(size: int, world_size: int) -> list[Sequence[int]]:
    """The last rank has every sample, the others none."""
    return [*[range(0)] * (world_size - 1), range(size)]


UNEVEN: dict[str, Deal] = {"samples in turn": in_turn, "most samples on rank 0": mostly_first}
WITHOUT_EMPTY: dict[str, Deal] = {
    "batches in turn": batches_in_turn,
    "most batches on rank 0": batches_mostly_first,
}
WITH_EMPTY: dict[str, Deal] = {
    "all samples on rank 0": all_first,
    "all samples on the last rank": all_last,
}


def uneven_sizes(world_size: int) -> tuple[int, ...]:
    """Numbers of samples of which one is a multiple of the world size; every rank gets one."""
    return (8 * world_size, 2 * world_size + 1, 4 * world_size + 3)


def many_samples(world_size: int) -> int:
    """More on each rank than a count of 8 bits holds."""
    return 257 * world_size + 1


def observe_metric(subject: Metric, case: Case, deals: Mapping[str, Deal]) -> Iterator[Record]:
    """Feed and compute a new metric for each deal, and record what a single process reports."""
    if case.rank == 0:
        right = values_of(subject.reference(range(case.size)))
        yield from (Expected(0, name, right) for name in deals)
    yield from observe_deals(subject, case, deals)


def observe_deals(subject: Metric, case: Case, deals: Mapping[str, Deal]) -> Iterator[Measured]:
    """Feed and compute a new metric for each deal."""
    for name, deal in deals.items():
        yield fresh(subject, case, name, deal(case.size, case.world_size)[case.rank])


def fresh(subject: Metric, case: Case, stage: str, *shares: Sequence[int]) -> Measured:
    """Feed a new metric with these samples of this rank, and compute it."""
    metric = subject.make(case)
    for share in shares:
        feed(subject, metric, share)
    return report(subject, case, stage, metric)


def halves(case: Case) -> tuple[Sequence[int], Sequence[int]]:
    """This rank's samples in the first half and in the second half of all samples."""
    middle = case.size // 2
    half, rest = range(middle), range(middle, case.size)
    return half[case.rank :: case.world_size], rest[case.rank :: case.world_size]


AGAIN, WHOLE, NEXT, ANOTHER = (
    "computed again",
    "after all samples, computed in between",
    "in the next epoch",
    "by another metric",
)


def observe_fresh(subject: Metric, case: Case) -> Iterator[Measured]:
    """The reports of new metrics, each of which is fed once and computed once."""
    half, rest = halves(case)
    first = fresh(subject, case, AGAIN, half)
    yield first
    yield replace(first, stage=ANOTHER)
    yield fresh(subject, case, WHOLE, half, rest)
    yield fresh(subject, case, NEXT, rest)


def observe_epochs(subject: Metric, case: Case) -> Iterator[Measured]:
    """Feed one metric half of the samples and compute twice; feed the rest; then a second epoch."""
    half, rest = halves(case)
    metric = subject.make(case)
    feed(subject, metric, half)
    subject.compute(metric)
    yield report(subject, case, AGAIN, metric)
    feed(subject, metric, rest)
    yield report(subject, case, WHOLE, metric)
    subject.reset(metric)
    feed(subject, metric, rest)
    yield report(subject, case, NEXT, metric)
    yield fresh(subject, case, ANOTHER, half)


def observe_evaluation(subject: Evaluation, case: Case) -> Iterator[Record]:
    """One pass over the data set of the case."""
    if case.rank == 0:
        yield Expected(0, REPORT, values_of(subject.reference(case)))
    yield Measured(case.rank, REPORT, values_of(subject.make(case)()))


def feed(subject: Metric, metric: Any, samples: Sequence[int]) -> None:
    """Feed this rank's samples, in batches."""
    for start in range(0, len(samples), BATCH):
        subject.update(metric, *subject.batch(samples[start : start + BATCH]))


def report(subject: Metric, case: Case, stage: str, metric: Any) -> Measured:
    """Compute the metric; its report on this rank."""
    return Measured(case.rank, stage, values_of(subject.compute(metric)))


def together(
    ranks: Ranks, case: Case, script: Iterator[Record], raising_is_wrong: bool = False
) -> list[Record]:
    """Run the script in lockstep; returns its records until an error, and its collectives."""
    records: list[Record] = []
    lockstep = Lockstep(ranks)
    try:
        with warnings.catch_warnings(), in_lockstep(lockstep):
            # The check chooses that a rank has no samples, not the subject.
            warnings.filterwarnings("ignore", message="The ``compute`` method of metric")
            for seen in script:
                records.append(seen)
                if isinstance(seen, Measured):
                    # A collective that a rank leaves out must not meet one of the next report.
                    lockstep.announce(f"reports {seen.stage!r}")
    except failures() as error:
        if not raising_is_wrong:
            raise
        records.append(Failed(case.rank, describe(error)))
    return [*records, *lockstep.calls]


def uneven_runs(subject: Reporting, ranks: Ranks) -> tuple[Run, ...]:
    """Every deal with a sample for each rank, or the evaluation at sizes that go with them."""
    many = (many_samples(ranks.world_size),) if isinstance(subject, Metric) else ()
    cases = cases_of(ranks, uneven_sizes(ranks.world_size) + many)
    return record_once(
        subject,
        ranks,
        cases,
        lambda s, case: iter(together(ranks, case, _script(s, case))),
        "uneven",
    )


def _script(subject: Reporting, case: Case) -> Iterator[Record]:
    if isinstance(subject, Evaluation):
        return observe_evaluation(subject, case)
    return observe_metric(subject, case, UNEVEN)


def judge_reports(subject: Reporting, runs: Sequence[Run]) -> tuple[Violation, ...]:
    """Each run's reports against a single process's."""
    return judge_each(runs, lambda run: judge.judge_values(run.history, subject.tolerance))


def find_wrong_values(subject: Reporting, ranks: Ranks) -> tuple[Violation, ...]:
    """MET-01 and MET-02; if nothing is found, ranks are compared once more, with other values."""
    found = judge_reports(subject, uneven_runs(subject, ranks))
    if found or not isinstance(subject, Metric) or subject.batch is not value_batch:
        return found
    rounded = replace(subject, batch=rounded_batch)
    cases = cases_of(ranks, (*uneven_sizes(ranks.world_size), many_samples(ranks.world_size)))
    runs = _runs(rounded, ranks, cases, lambda s, case: observe_deals(s, case, UNEVEN))
    return judge_each(runs, lambda run: judge.judge_alike(run.history))


def find_padding(subject: Evaluation, ranks: Ranks) -> tuple[Violation, ...]:
    """MET-03: fewer samples than ranks, and one more or less than a multiple of them."""
    cases = cases_of(ranks, sizes(ranks.world_size))
    return judge_reports(subject, _runs(subject, ranks, cases, observe_evaluation))


def find_empty_rank_harm(subject: Metric, ranks: Ranks) -> tuple[Violation, ...]:
    """MET-04: against the metric's own values for the same batches where no rank is empty.

    If nothing is found, once more with positive values alone, and with negative ones: 0 of a rank
    without samples changes no minimum of values of both signs, and no maximum. Undecided where the
    metric's own values cannot be had, because the ranks' collectives differ.
    """
    found = _harm_of_both_signs(subject, ranks)
    if subject.batch is not value_batch:
        return found
    return found or _harm_of_one_sign(subject, ranks, 1) or _harm_of_one_sign(subject, ranks, -1)


def _harm_of_both_signs(subject: Metric, ranks: Ranks) -> tuple[Violation, ...]:
    cases = cases_of(ranks, (_several_batches(ranks), 1))
    without = _runs(subject, ranks, cases[:1], lambda s, c: observe_deals(s, c, WITHOUT_EMPTY))
    demand_same_calls(subject, without, "MET-06")
    own = judge.own_value(without[0].history, subject.tolerance)
    runs = _runs(subject, ranks, cases, lambda s, c: observe_deals(s, c, WITH_EMPTY), True)

    def judge_run(run: Run) -> Sequence[Violation]:
        if run.case.size > 1:
            return judge.judge_unharmed(run.history, own, WITHOUT, subject.tolerance)
        # One sample leaves some rank empty however it is dealt.
        first = next((m.values for m in run.history if isinstance(m, Measured)), ())
        alone = first if own else ()
        return judge.judge_unharmed(run.history, alone, "rank 0 with the sample", subject.tolerance)

    return judge_each(runs, judge_run)


def _harm_of_one_sign(subject: Metric, ranks: Ranks, sign: int) -> tuple[Violation, ...]:
    """Nothing where a metric does not take such values: it raises, or reports no finite number."""
    signed = replace(subject, batch=partial(signed_batch, sign))
    cases = cases_of(ranks, (_several_batches(ranks),))
    (without,) = _runs(signed, ranks, cases, lambda s, c: observe_deals(s, c, WITHOUT_EMPTY), True)
    own = judge.own_value(without.history, subject.tolerance)
    if judge.judge_reporting(without.history) or not all(map(math.isfinite, own)):
        return ()
    (run,) = _runs(signed, ranks, cases, lambda s, c: observe_deals(s, c, WITH_EMPTY), True)
    values = f"all values {'positive' if sign > 0 else 'negative'}: "
    found = judge.judge_unharmed(run.history, own, WITHOUT, subject.tolerance)
    return tuple(replace(one, what=values + one.what) for one in found)


def _several_batches(ranks: Ranks) -> int:
    """Samples of which every rank can have batches, the last one short."""
    return 2 * BATCH * ranks.world_size - 2


def find_changes(subject: Metric, ranks: Ranks) -> tuple[Violation, ...]:
    """MET-05: against the values of new metrics, on the same rank, fed and computed once.

    Undecided where those cannot be had, because the ranks' collectives differ.
    """
    cases = cases_of(ranks, (4 * ranks.world_size + 2,))
    new = _runs(subject, ranks, cases, observe_fresh)
    demand_same_calls(subject, new, "MET-06")
    return judge_each(
        _runs(subject, ranks, cases, observe_epochs),
        lambda run: judge.judge_unchanged(run.history, new[0].history, subject.tolerance),
    )


def _runs(
    subject: Reporting,
    ranks: Ranks,
    cases: Sequence[Case],
    script: Callable[[Any, Case], Iterator[Record]],
    raising_is_wrong: bool = False,
) -> tuple[Run, ...]:
    return record(
        subject,
        ranks,
        cases,
        lambda s, case: iter(together(ranks, case, script(s, case), raising_is_wrong)),
    )


def find_different_calls(subject: Reporting, ranks: Ranks) -> tuple[Violation, ...]:
    """Check MET-06."""
    return judge_each(uneven_runs(subject, ranks), lambda run: judge_same_calls(run.history))


NONLINEAR = frozenset({"nonlinear"})

CHECKS = (
    Check(MET_01, (Metric, Evaluation), find_wrong_values, excused=NONLINEAR),
    Check(MET_02, (Metric, Evaluation), find_wrong_values, needs=NONLINEAR),
    Check(MET_03, (Evaluation,), find_padding),
    Check(MET_04, (Metric,), find_empty_rank_harm),
    Check(MET_05, (Metric,), find_changes),
    Check(MET_06, (Metric, Evaluation), find_different_calls),
)
