"""MET-01 to MET-06: what is reported of all ranks' samples.

The evidence is the reported number, beside the one that a single process computes in
float64 from the same samples. The ranks get different numbers of samples, batches and
samples in a batch. All collectives run in lockstep, so that ranks that disagree end in
a violation and not in a hang.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from ddp_conformance.case import Case, sizes
from ddp_conformance.checks import judge_metrics as judge
from ddp_conformance.history import Expected, Failed, Measured, Record, Run
from ddp_conformance.lockstep import Lockstep, in_lockstep
from ddp_conformance.ranks import Ranks
from ddp_conformance.recording import cases_of, describe, judge_each, record, record_once
from ddp_conformance.registry import Check, Guarantee
from ddp_conformance.subjects_metrics import Evaluation, Metric, values_of
from ddp_conformance.verdict import Violation

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

Reporting: TypeAlias = Metric | Evaluation

Deal: TypeAlias = Callable[[int, int], list[range]]
"""From the number of samples and of ranks to the samples of each rank."""


def in_turn(size: int, world_size: int) -> list[range]:
    """Every world-size-th sample; the ranks' numbers differ by one at most."""
    return [range(rank, size, world_size) for rank in range(world_size)]


def mostly_first(size: int, world_size: int) -> list[range]:
    """All but one sample for each rank go to rank 0."""
    most = size - world_size + 1
    return [range(most), *(range(index, index + 1) for index in range(most, size))]


def all_first(size: int, world_size: int) -> list[range]:
    """Rank 0 has every sample, the others none."""
    return [range(size), *[range(0)] * (world_size - 1)]


def all_last(size: int, world_size: int) -> list[range]:
    """The last rank has every sample, the others none."""
    return [*[range(0)] * (world_size - 1), range(size)]


UNEVEN: dict[str, Deal] = {"samples in turn": in_turn, "most samples on rank 0": mostly_first}
WITH_EMPTY: dict[str, Deal] = {
    "all samples on rank 0": all_first,
    "all samples on the last rank": all_last,
}


def uneven_sizes(world_size: int) -> tuple[int, ...]:
    """Numbers of samples of which one is a multiple of the world size; every rank gets one."""
    return (8 * world_size, 2 * world_size + 1, 4 * world_size + 3)


def observe_metric(subject: Metric, case: Case, deals: Mapping[str, Deal]) -> Iterator[Record]:
    """A new metric for each deal, fed and computed."""
    for name, deal in deals.items():
        metric = subject.make(case)
        feed(subject, metric, deal(case.size, case.world_size)[case.rank])
        yield from reports(subject, case, name, metric, range(case.size))


def observe_epochs(subject: Metric, case: Case) -> Iterator[Record]:
    """One metric: half of the samples, computed twice, all samples, a second epoch."""
    half, every = range(case.size // 2), range(case.size)
    metric = subject.make(case)
    feed(subject, metric, half[case.rank :: case.world_size])
    yield from reports(subject, case, "after half of the samples", metric, half)
    yield from reports(subject, case, "computed again", metric, half)
    rest = every[case.size // 2 :]
    feed(subject, metric, rest[case.rank :: case.world_size])
    yield from reports(subject, case, "after all samples", metric, every)
    subject.reset(metric)
    feed(subject, metric, rest[case.rank :: case.world_size])
    yield from reports(subject, case, "in the next epoch", metric, rest)


def observe_evaluation(subject: Evaluation, case: Case) -> Iterator[Record]:
    """One pass over the data set of the case."""
    if case.rank == 0:
        yield Expected(0, REPORT, values_of(subject.reference(case)))
    yield Measured(case.rank, REPORT, values_of(subject.make(case)()))


def feed(subject: Metric, metric: Any, samples: Sequence[int]) -> None:
    """Feed this rank's samples, in batches."""
    for start in range(0, len(samples), BATCH):
        subject.update(metric, *subject.batch(samples[start : start + BATCH]))


def reports(
    subject: Metric, case: Case, stage: str, metric: Any, samples: Sequence[int]
) -> Iterator[Record]:
    """What this rank reports, and on rank 0 what a single process does."""
    if case.rank == 0:
        yield Expected(0, stage, values_of(subject.reference(samples)))
    yield Measured(case.rank, stage, values_of(subject.compute(metric)))


def together(
    ranks: Ranks, case: Case, script: Iterator[Record], raising_is_wrong: bool = False
) -> list[Record]:
    """Run the script in lockstep; its records, as far as it came, and its collectives."""
    records: list[Record] = []
    lockstep = Lockstep(ranks)
    try:
        with warnings.catch_warnings(), in_lockstep(lockstep):
            # That a rank has no samples is our choice, not the subject's.
            warnings.filterwarnings("ignore", message="The ``compute`` method of metric")
            for seen in script:
                records.append(seen)
    except Exception as error:
        if not raising_is_wrong:
            raise
        records.append(Failed(case.rank, describe(error)))
    return [*records, *lockstep.calls]


def uneven_runs(subject: Reporting, ranks: Ranks) -> tuple[Run, ...]:
    """Every deal with a sample for each rank, or the evaluation at sizes that go with them."""
    cases = cases_of(ranks, uneven_sizes(ranks.world_size))
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
    """MET-01 and MET-02."""
    return judge_reports(subject, uneven_runs(subject, ranks))


def find_padding(subject: Evaluation, ranks: Ranks) -> tuple[Violation, ...]:
    """MET-03: fewer samples than ranks, and one more or less than a multiple of them."""
    cases = cases_of(ranks, sizes(ranks.world_size))
    runs = record(
        subject,
        ranks,
        cases,
        lambda s, case: iter(together(ranks, case, observe_evaluation(s, case))),
    )
    return judge_reports(subject, runs)


def find_empty_rank_harm(subject: Metric, ranks: Ranks) -> tuple[Violation, ...]:
    """MET-04."""
    cases = cases_of(ranks, (1, 2 * ranks.world_size + 1))
    runs = record(
        subject,
        ranks,
        cases,
        lambda s, case: iter(
            together(ranks, case, observe_metric(s, case, WITH_EMPTY), raising_is_wrong=True)
        ),
    )
    return judge_reports(subject, runs)


def find_changes(subject: Metric, ranks: Ranks) -> tuple[Violation, ...]:
    """MET-05."""
    cases = cases_of(ranks, (4 * ranks.world_size + 2,))
    runs = record(
        subject, ranks, cases, lambda s, case: iter(together(ranks, case, observe_epochs(s, case)))
    )
    return judge_reports(subject, runs)


def find_different_calls(subject: Reporting, ranks: Ranks) -> tuple[Violation, ...]:
    """MET-06."""
    return judge_each(uneven_runs(subject, ranks), lambda run: judge.judge_same_calls(run.history))


NONLINEAR = frozenset({"nonlinear"})

CHECKS = (
    Check(MET_01, (Metric, Evaluation), find_wrong_values, excused=NONLINEAR),
    Check(MET_02, (Metric, Evaluation), find_wrong_values, needs=NONLINEAR),
    Check(MET_03, (Evaluation,), find_padding),
    Check(MET_04, (Metric,), find_empty_rank_harm),
    Check(MET_05, (Metric,), find_changes),
    Check(MET_06, (Metric, Evaluation), find_different_calls),
)
