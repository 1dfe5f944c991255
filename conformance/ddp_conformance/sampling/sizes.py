"""Deliveries at many more sizes than SMP-01 to SMP-03 name: as many as a moment allows.

A defect may show only beyond a buffer, where a count of few bits overflows, or at a remainder of
the batch. Real ranks deliver, so that a subject may ask its process group for its rank; only the
sizes that look wrong are looked at closely.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from ddp_conformance.framework.allowance import Terms
from ddp_conformance.framework.case import Case, sizes
from ddp_conformance.framework.history import Record, Run
from ddp_conformance.framework.ranks import Ranks
from ddp_conformance.framework.recording import cases_of, once, record
from ddp_conformance.sampling import judge
from ddp_conformance.sampling.deliveries import batches_at_most, deliveries
from ddp_conformance.sampling.history import EpochEnd, Sample, Share
from ddp_conformance.sampling.stopwatch import Stopwatch
from ddp_conformance.sampling.subjects import Loader, Sampler, as_indices, terms_of

SECONDS = 0.1
"""Seconds after which no more sizes are begun; those that run take at most twice as long again."""

LARGEST = 2048
"""Up to here every size is tried, if there is time."""

SUSPECTS = 3
"""Sizes that are judged; one would be enough, the others show the pattern."""


def telling_sizes(world_size: int) -> list[int]:
    """Sizes with a remainder of two, and beyond counts of 6 to 15 bits, in all and on each rank."""
    telling = (
        4 * world_size + 2,
        *(2**bits + 1 for bits in (6, 7, 8, 10, 11, 15)),
        *(2**bits * world_size + 1 for bits in (6, 7, 8)),
    )
    return list(dict.fromkeys(telling))


def unusual_sizes(world_size: int) -> list[int]:
    """The telling sizes first, then all up to a limit, without the usual ones."""
    every = dict.fromkeys((*telling_sizes(world_size), *range(world_size, LARGEST + 1)))
    return [size for size in every if size not in sizes(world_size)]


def suspicious_runs(subject: Sampler | Loader, ranks: Ranks) -> tuple[Run, ...]:
    """The runs at unusual sizes that look as if they broke a guarantee; made once."""
    return once(subject, ranks, ("unusual sizes",), lambda: _search(subject, ranks))


def _search(subject: Sampler | Loader, ranks: Ranks) -> tuple[Run, ...]:
    """All telling sizes of a sampler, or the first of a loader; then twice as much each time.

    All ranks stop at the same size, early if the part is slow.
    """
    least = subject.min_size * ranks.world_size
    remaining = [size for size in unusual_sizes(ranks.world_size) if size >= least]
    telling = [size for size in telling_sizes(ranks.world_size) if size >= least]
    telling = telling if isinstance(subject, Sampler) else remaining[:1]
    samples, number = sum(telling), len(telling)
    watch = Stopwatch()
    while remaining and max(ranks.gather(watch.seconds())) < SECONDS:
        chosen = _choice(remaining, samples, number)
        remaining = [size for size in remaining if size not in chosen]
        cases = cases_of(ranks, chosen)
        runs = record(subject, ranks, cases, shares, in_one_try=True)
        suspects = [in_full(run) for run in runs if looks_wrong(run, subject)]
        if suspects:
            return tuple(suspects[:SUSPECTS])
        samples, number = 2 * samples, 2 * number
    return ()


def _choice(remaining: Sequence[int], samples: int, number: int) -> list[int]:
    """The first sizes that fit: ``number`` of them at most, and ``samples`` in all."""
    chosen: list[int] = []
    for size in remaining:
        if size <= samples and len(chosen) < number:
            chosen.append(size)
            samples -= size
    return chosen


def shares(subject: Sampler | Loader, case: Case) -> Iterator[Record]:
    """What this rank delivers in two epochs; the first one depends on the size."""
    if "endless" in subject.traits:
        yield from deliveries(subject, case, (0, 1))
        return
    component = subject.make(case)
    first = case.size % 8
    for epoch in (first, first + 1):
        subject.set_epoch(component, epoch)
        yield _share(subject, component, case, epoch)


def _share(subject: Sampler | Loader, component: Any, case: Case, epoch: int) -> Share:
    limit = batches_at_most(subject, case)
    indices: list[int] = []
    batches = 0
    for batch in islice(component, limit):
        batches += 1
        indices += as_indices(subject.indices(batch))
    return Share(case.rank, epoch, batches, batches < limit, tuple(indices))


def looks_wrong(run: Run, subject: Sampler | Loader) -> bool:
    """Whether any of SMP-01 to SMP-03 may be broken; a judge decides."""
    plain = Terms(subject.traits - {"replacement", "endless"}, subject.batch_size)
    if terms_of(subject) != plain:
        return _is_judged_wrong(in_full(run), subject)
    shares = [record for record in run.history if isinstance(record, Share)]
    epochs = {share.epoch for share in shares}
    return any(
        _is_wrong([share for share in shares if share.epoch == epoch], run.case, subject)
        for epoch in epochs
    )


def _is_judged_wrong(run: Run, subject: Sampler | Loader) -> bool:
    """Whether a size is judged wrong, for further declarations than pads and drops, which need a
    judge at once.
    """
    size, world_size = run.case.size, run.case.world_size
    uneven = subject.traits & {"uneven", "endless"}
    return bool(
        judge.judge_coverage(run.history, size, world_size, terms_of(subject))
        or (not uneven and judge.judge_equal_batches(run.history))
        or ("evaluates" in subject.traits and judge.judge_exactly_once(run.history, size))
    )


def _is_wrong(shares: Sequence[Share], case: Case, subject: Sampler | Loader) -> bool:
    surplus, missing = terms_of(subject).allowed(case.size, case.world_size)
    delivered = [index for share in shares for index in share.indices]
    distinct = set(delivered)
    repeated, lost = len(delivered) - len(distinct), case.size - len(distinct)
    return any(
        (
            distinct and (min(distinct) < 0 or max(distinct) >= case.size),
            not all(share.exhausted for share in shares),
            "uneven" not in subject.traits and len({share.batches for share in shares}) > 1,
            repeated > surplus or lost > missing,
            "evaluates" in subject.traits and repeated + lost > 0,
        )
    )


def in_full(run: Run) -> Run:
    """The run as if each of its samples had been noted."""
    history: list[Record] = []
    for share in run.history:
        if isinstance(share, Share):
            history += [
                Sample(share.rank, share.epoch, step, index)
                for step, index in enumerate(share.indices)
            ]
            history.append(EpochEnd(share.rank, share.epoch, share.batches, share.exhausted))
        else:
            history.append(share)
    return Run(run.case, tuple(history))
