"""What a component delivers to one rank, epoch by epoch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeAlias

from ddp_conformance.framework import nemesis
from ddp_conformance.framework.case import Case
from ddp_conformance.framework.failures import failures
from ddp_conformance.framework.history import Record, Refused
from ddp_conformance.sampling.history import EpochEnd, Sample
from ddp_conformance.sampling.subjects import Loader, Sampler, as_indices, terms_of

Delivering: TypeAlias = Sampler | Loader


def deliveries(
    subject: Delivering, case: Case, epochs: Sequence[int], *, to_batch_end: bool = True
) -> Iterator[Record]:
    """What a new component delivers to this rank in the given epochs, or its refusal.

    Of one that never ends, a last batch that reaches into the next epoch counts as well: batches
    are what ranks share out. Without ``to_batch_end`` epochs have equally many samples.

    A refusal counts only for a case that is smaller than the subject's ``min_size``.
    """
    try:
        yield from _delivered(subject, case, epochs, to_batch_end)
    except failures() as error:
        if case.size >= subject.min_size * case.world_size:
            raise
        yield Refused(case.rank, type(error).__name__)


def _delivered(
    subject: Delivering, case: Case, epochs: Sequence[int], to_batch_end: bool
) -> Iterator[Record]:
    component = subject.make(case)
    if "endless" in subject.traits:
        nemesis.pause()
        subject.set_epoch(component, 0)
        yield from _parts(subject, component, case, epochs, to_batch_end)
        return
    for epoch in epochs:
        nemesis.pause()
        subject.set_epoch(component, epoch)
        yield from _one_epoch(subject, component, case, epoch)


def _one_epoch(subject: Delivering, component: Any, case: Case, epoch: int) -> Iterator[Record]:
    limit = batches_at_most(subject, case)
    batches = 0
    for step, batch in enumerate(islice(component, limit)):
        batches = step + 1
        worker = worker_of(batch)
        for index in as_indices(subject.indices(batch)):
            yield Sample(case.rank, epoch, step, index, worker)
    yield EpochEnd(case.rank, epoch, batches, exhausted=batches < limit)


def _parts(
    subject: Delivering, component: Any, case: Case, epochs: Sequence[int], to_batch_end: bool
) -> Iterator[Record]:
    """An epoch of an endless part: as many samples as give each rank its share of all."""
    share = -(-case.size * subject.copies // case.world_size)
    parts = max(epochs) + 1
    limit = parts * batches_at_most(subject, case)
    batches = samples = 0
    for step, batch in enumerate(islice(component, limit)):
        batches = step + 1
        worker = worker_of(batch)
        for index in as_indices(subject.indices(batch)):
            epoch = min(samples // share, parts - 1) if to_batch_end else samples // share
            if epoch in epochs:
                yield Sample(case.rank, epoch, step, index, worker)
            samples += 1
        if samples >= parts * share:
            break
    ended = samples < parts * share and batches < limit
    for epoch in epochs:
        yield EpochEnd(case.rank, epoch, batches, exhausted=ended)


def batches_at_most(subject: Delivering, case: Case) -> int:
    """A limit far above what a right component delivers, so that an endless one ends, too."""
    return 2 * max(case.size * subject.copies, terms_of(subject).total(case.size)) + 16


def worker_of(batch: Any) -> int | None:
    """The DataLoader worker that read the batch, if its samples name one and the same.

    Only for the text of a violation: None for a batch of no samples, and if ``worker`` is a name
    or anything else that is no number.
    """
    carried = batch.get("worker") if isinstance(batch, Mapping) else None
    try:
        workers = set(as_indices(carried))
    except (TypeError, ValueError):
        return None
    return workers.pop() if len(workers) == 1 else None
