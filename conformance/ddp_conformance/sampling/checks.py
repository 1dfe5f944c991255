"""SMP-01 to SMP-05: which samples the ranks deliver, how often and in which order.

All verdicts rest on the indices of the delivered samples. Neither the type of a sampler nor
the list that it would give is evidence of what arrives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain

from ddp_conformance.framework.case import Case, sizes
from ddp_conformance.framework.history import Record, Refused, Run
from ddp_conformance.framework.ranks import Ranks
from ddp_conformance.framework.recording import (
    Judge,
    cases_of,
    find_first,
    judge_each,
    record,
    record_once,
    skip_random_numbers,
)
from ddp_conformance.framework.registry import Check, Guarantee, remark
from ddp_conformance.framework.verdict import UndecidedError, Violation
from ddp_conformance.launched.start.apart import find_apart
from ddp_conformance.lockstep.clocks import LATER, SECONDS, clock_ahead
from ddp_conformance.sampling import judge, randomness
from ddp_conformance.sampling.deliveries import Delivering, deliveries
from ddp_conformance.sampling.excuses import declarations, in_words
from ddp_conformance.sampling.history import Sample
from ddp_conformance.sampling.sizes import suspicious_runs
from ddp_conformance.sampling.stopwatch import Stopwatch
from ddp_conformance.sampling.subjects import Loader, Sampler, terms_of

EPOCHS = (0, 1)

MANY_EPOCHS = range(24)

MANY_SAMPLES = 64
"""Samples of each rank in many epochs: several batches, as a part may shuffle only these."""

GROUPED_SAMPLES = 2048
"""Samples of each rank with which a part has several groups of 50 batches of some 16."""

QUICK = 0.1
"""Seconds of two epochs; a slower loader, such as one that forks, is not checked in many epochs."""

SMP_01 = Guarantee(
    "SMP-01",
    "In one epoch every sample MUST be delivered by at least one rank, and samples MUST NOT be "
    "repeated or left out beyond what the component declares.",
    starred=True,
)
SMP_02 = Guarantee(
    "SMP-02",
    "All ranks MUST deliver the same number of batches in an epoch, unless the loop is declared "
    "to cope with uneven inputs.",
)
SMP_03 = Guarantee(
    "SMP-03",
    "Evaluation MUST count each sample exactly once in whatever it reports.",
)
SMP_04 = Guarantee(
    "SMP-04",
    "With shuffling on, the order MUST change between epochs and MUST depend on nothing but the "
    "seed and the epoch.",
)

SMP_05 = Guarantee(
    "SMP-05",
    "A stream MUST be split over ranks and their workers so that nothing is repeated or lost, "
    "whatever the number of workers.",
)


def record_epochs(subject: Delivering, ranks: Ranks) -> tuple[Run, ...]:
    """Two epochs at every size."""
    cases = cases_of(ranks, sizes_for(subject, ranks.world_size))
    return record_once(subject, ranks, cases, two_epochs, "two epochs")


def sizes_for(subject: Delivering, world_size: int) -> tuple[int, ...]:
    """The usual sizes, and those at which the subject's own sizes allow the least."""
    found = {*sizes(world_size)}
    if subject.batch_size > 1 or subject.min_size > 0:
        full = full_size(subject, world_size)
        found |= {full, full + 1}
    if "replacement" in subject.traits:
        found.add(MANY_SAMPLES * world_size)  # enough for two equal draws to be no coincidence
    return tuple(sorted(found))


def full_size(subject: Delivering, world_size: int) -> int:
    """A number of samples with full batches for each rank, at least two, and nothing to refuse."""
    return world_size * subject.batch_size * max(2, -(-subject.min_size // subject.batch_size))


def unless_refused(judge_run: Judge) -> Judge:
    """A judge that passes a run in which ranks refused."""
    return lambda run: () if _refused(run) else judge_run(run)


def _refused(run: Run) -> bool:
    return any(isinstance(record, Refused) for record in run.history)


def judge_coverage_of(subject: Delivering) -> Judge:
    """SMP-01 and SMP-05. Raises ``ValueError`` for a subject with a wrong ``batch_size``."""

    def judge_run(run: Run) -> tuple[Violation, ...]:
        case = run.case
        if _refused(run):
            return judge.judge_refusals(run.history)
        # The largest of dynamic batches may need more samples.
        is_full = case.size == full_size(subject, case.world_size)
        if is_full and "dynamic_batches" not in subject.traits:
            _check_batches(subject, run)
        workers = max(1, case.num_workers)
        terms = terms_of(subject)
        return judge.judge_coverage(run.history, case.size, case.world_size, terms, workers)

    return judge_run


def _check_batches(subject: Delivering, run: Run) -> None:
    """Raise ``ValueError`` if ``batch_size`` is too large, which would widen the allowance."""
    batches = Counter((s.rank, s.epoch, s.step) for s in run.history if isinstance(s, Sample))
    largest = max(batches.values(), default=1)
    if 1 < largest < subject.batch_size:
        raise ValueError(f"batch_size={subject.batch_size}, but no batch has more than {largest}")


def _judged(subject: Delivering, ranks: Ranks, look: Judge) -> tuple[Violation, ...]:
    """Judge the sizes at which sharding goes wrong first, then many others."""
    return judge_each(record_epochs(subject, ranks), look) or judge_each(
        suspicious_runs(subject, ranks), look
    )


def find_coverage(subject: Delivering, ranks: Ranks) -> tuple[Violation, ...]:
    """SMP-01; then with the last rank's clock ahead, then with a hash seed of its own."""
    look = judge_coverage_of(subject)
    found = _judged(subject, ranks, look)
    if found:
        _name_an_excuse(subject, ranks)
    last = ranks.world_size - 1
    if found or last == 0:
        return found

    def observe(subject: Delivering, case: Case) -> Iterator[Record]:
        with clock_ahead() if case.rank == last else nullcontext():
            yield from two_epochs(subject, case)

    size = even_size(subject, ranks.world_size)
    how = f"the clock of rank {last} {SECONDS} s ahead: "
    runs = record(subject, ranks, cases_of(ranks, (size,)), observe)
    found = tuple(replace(one, what=how + one.what) for one in judge_each(runs, look))
    return found or find_apart(subject, ranks, size, two_epochs, find_coverage_at_one_size)


def _name_an_excuse(subject: Delivering, ranks: Ranks) -> None:
    """Remark the declaration under which the subject would keep SMP-01, if there is one."""
    runs = record_epochs(subject, ranks)
    if not judge_each(runs, judge_coverage_of(subject)):
        runs = (*runs, *suspicious_runs(subject, ranks))
    for declared in declarations(subject, runs):
        look = judge_coverage_of(declared)
        try:
            # An endless part needs a recording of its own.
            seen = "endless" not in declared.traits and judge_each(runs, look)
            if not seen and not _judged(declared, ranks, look):
                remark(f"legal if declared: {in_words(declared)}")
                return
        except (UndecidedError, ValueError):
            continue  # it does not deliver what this declaration requires


def even_size(subject: Delivering, world_size: int) -> int:
    """Several samples for each rank, and full batches."""
    return max(8 * world_size, full_size(subject, world_size))


def two_epochs(subject: Delivering, case: Case) -> Iterator[Record]:
    """What a new component delivers in two epochs."""
    return deliveries(subject, case, EPOCHS)


def find_coverage_at_one_size(subject: Delivering, ranks: Ranks) -> tuple[Violation, ...]:
    """SMP-01 at one size."""
    cases = cases_of(ranks, (even_size(subject, ranks.world_size),))
    return judge_each(record(subject, ranks, cases, two_epochs), judge_coverage_of(subject))


def find_unequal_batches(subject: Delivering, ranks: Ranks) -> tuple[Violation, ...]:
    """Check SMP-02."""
    judge_run = unless_refused(lambda run: judge.judge_equal_batches(run.history))
    return _judged(subject, ranks, judge_run)


def find_wrong_counts(subject: Delivering, ranks: Ranks) -> tuple[Violation, ...]:
    """Check SMP-03."""
    judge_run = unless_refused(lambda run: judge.judge_exactly_once(run.history, run.case.size))
    return _judged(subject, ranks, judge_run)


def find_order(subject: Delivering, ranks: Ranks) -> tuple[Violation, ...]:
    """SMP-04: two epochs, then the second one again in a new component.

    Each rank draws another number of random numbers in between, and its clock is ahead from then
    on, so that an order that depends on the global generators or on the time shows.
    """
    chance = "replacement" in subject.traits
    few = MANY_SAMPLES if chance else judge.RELIABLE_ORDER
    size = max(16, few * ranks.world_size, full_size(subject, ranks.world_size))
    watch = Stopwatch()
    first = _epochs_of(subject, ranks, size, EPOCHS)
    slowest = max(ranks.gather(watch.seconds()))
    quick = isinstance(subject, Sampler) or slowest < QUICK
    if same := judge_each(first, lambda run: judge.judge_order_changes(run.history)):
        # A part that sorts shuffled samples in groups, by length for example, has one order for as
        # long as all of them are in one group.
        size = max(size, GROUPED_SAMPLES * ranks.world_size)
        first = _epochs_of(subject, ranks, size, EPOCHS)
        if judge_each(first, lambda run: judge.judge_order_changes(run.history)):
            return same
    skip_random_numbers(ranks.rank + 1)
    with clock_ahead(LATER):
        again = _epochs_of(subject, ranks, size, EPOCHS[-1:])
    found = judge_each(first, lambda run: judge.judge_order_repeats(run.history, again[0].history))
    if found:
        remark("it started anew after random numbers were drawn, with its clock 400 days ahead")
    return found or (find_returning_order(subject, ranks, size) if quick else ())


def find_returning_order(subject: Delivering, ranks: Ranks, size: int) -> tuple[Violation, ...]:
    """SMP-04 over many epochs; samplers also start anew at each of them, loaders at the last."""
    size = max(MANY_SAMPLES * ranks.world_size, size)
    run = _epochs_of(subject, ranks, size, MANY_EPOCHS)
    starts = MANY_EPOCHS[2 if isinstance(subject, Sampler) else -1 :]
    again = _epochs_of(subject, ranks, size, *((epoch,) for epoch in starts))
    return (
        *judge_each(run, lambda run: judge.judge_order_returns(run.history)),
        *judge_each(run, lambda run: judge.judge_order_repeats(run.history, again[0].history)),
    )


def _epochs_of(
    subject: Delivering, ranks: Ranks, size: int, *epochs: Sequence[int]
) -> tuple[Run, ...]:
    """New components, each of which delivers some epochs."""
    return record(
        subject,
        ranks,
        cases_of(ranks, (size,)),
        lambda s, case: chain.from_iterable(
            deliveries(s, case, some, to_batch_end=False) for some in epochs
        ),
    )


def find_bad_split(subject: Loader, ranks: Ranks) -> tuple[Violation, ...]:
    """SMP-05: SMP-01 at two sizes with up to 3 workers; the first case that shows it is enough.

    Workers are slow to start, so those cases come last.
    """
    cases = cases_of(ranks, _stream_sizes(subject, ranks.world_size), workers=(0, 1, 2, 3))
    if "any_workers" in subject.traits:
        cases += cases[-1].with_hard_workers()
    return find_first(subject, ranks, cases, _split, judge_coverage_of(subject))


def _stream_sizes(subject: Loader, world_size: int) -> tuple[int, ...]:
    usual: tuple[int, ...] = (1, 2 * world_size + 3)
    if "replacement" in subject.traits:
        usual += (MANY_SAMPLES * world_size,)
    declared = subject.batch_size > 1 or subject.min_size > 0
    # Full batches for each of two workers and of three.
    return (*usual, 6 * full_size(subject, world_size)) if declared else usual


def _split(subject: Loader, case: Case) -> Iterator[Record]:
    return deliveries(subject, case, EPOCHS if case.persistent_workers else EPOCHS[:1])


CHECKS = (
    *randomness.CHECKS,
    Check(SMP_01, (Sampler, Loader), find_coverage),
    Check(
        SMP_02, (Sampler, Loader), find_unequal_batches, excused=frozenset({"uneven", "endless"})
    ),
    Check(SMP_03, (Sampler, Loader), find_wrong_counts, needs=frozenset({"evaluates"})),
    Check(SMP_04, (Sampler, Loader), find_order, needs=frozenset({"shuffles"})),
    Check(SMP_05, (Loader,), find_bad_split, needs=frozenset({"iterable"})),
)
