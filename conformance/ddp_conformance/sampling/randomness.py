"""SMP-06 and SMP-07: random orders that ranks must share, random numbers that they must not."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.utils.data import Sampler as TorchSampler
from torch.utils.data import WeightedRandomSampler

from ddp_conformance.framework.allowance import allowed
from ddp_conformance.framework.case import Case, worker_number
from ddp_conformance.framework.failures import failures
from ddp_conformance.framework.history import Record, Refused, Run
from ddp_conformance.framework.ranks import Ranks
from ddp_conformance.framework.recording import (
    cases_of,
    find_first,
    judge_each,
    record,
    skip_random_numbers,
)
from ddp_conformance.framework.registry import Check, Guarantee
from ddp_conformance.framework.verdict import Violation
from ddp_conformance.sampling import judge
from ddp_conformance.sampling.history import Delivered, Drawn, Draws
from ddp_conformance.sampling.subjects import Loader, SamplerWrapper, as_indices, sampler_indices

SMP_06 = Guarantee(
    "SMP-06",
    "A sampler of the user's that is dealt out to ranks MUST keep its properties even if the "
    "ranks' random states differ: the ranks' shares make up one draw, or all ranks refuse.",
    tier=2,
)
SMP_07 = Guarantee(
    "SMP-07",
    "The random numbers that augmentation draws MUST differ between any two pairs of rank and "
    "worker, and from epoch to epoch.",
)

# ------------------------------------------------------------- SMP-06: one draw

Base: TypeAlias = Callable[[int], "TorchSampler[Any]"]

BUCKET = 4
"""Samples of a bucket; the batches of :class:`BucketBatches` do not mix buckets."""


class BucketBatches(TorchSampler[list[int]]):
    """Batches of two from one bucket each, in an order that python's generator gives."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return len(self._batches())

    def __iter__(self) -> Iterator[list[int]]:
        batches = self._batches()
        random.shuffle(batches)
        return iter(batches)

    def _batches(self) -> list[list[int]]:
        return [
            list(range(start, min(start + 2, bucket + BUCKET, self._size)))
            for bucket in range(0, self._size, BUCKET)
            for start in range(bucket, min(bucket + BUCKET, self._size), 2)
        ]


class LoggedSampler(TorchSampler[Any]):
    """Passes on what another sampler draws, and remembers each draw."""

    def __init__(self, base: TorchSampler[Any]) -> None:
        self._base = base
        self.draws: list[tuple[tuple[int, ...], ...]] = []

    def __len__(self) -> int:
        return len(self._base)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        items = list(self._base)
        self.draws.append(tuple(map(sampler_indices, items)))
        return iter(items)


def permutation(size: int) -> TorchSampler[Any]:
    """Every index once, drawn from torch's global generator."""
    return torch.utils.data.RandomSampler(range(size))


def weighted(size: int) -> TorchSampler[Any]:
    """Draw as many indices as samples, with replacement, from torch's global generator."""
    return WeightedRandomSampler([index + 1.0 for index in range(size)], size)


BASES: dict[str, Base] = {
    "random permutation": permutation,
    "weighted sampler": weighted,
    "batch sampler": BucketBatches,
}


def shares(subject: SamplerWrapper, case: Case, base: Base) -> Iterator[Record]:
    """What the wrapper delivers to this rank and what it drew for that, or its refusal."""
    # Ranks that by chance share their random state would hide the defect.
    skip_random_numbers(case.rank)
    sampler = LoggedSampler(base(case.size))
    try:
        share = islice(subject.make(case, sampler), 2 * case.size + 16)
        delivered = Delivered(case.rank, tuple(as_indices(subject.indices(item)) for item in share))
    except failures() as error:
        yield Refused(case.rank, type(error).__name__)
        return
    yield delivered
    yield from (Drawn(case.rank, draw) for draw in sampler.draws)


def find_torn_draw(subject: SamplerWrapper, ranks: Ranks) -> tuple[Violation, ...]:
    """SMP-06, for three common samplers."""
    return tuple(
        violation
        for name, base in BASES.items()
        for violation in _torn_draw_of(subject, ranks, name, base)
    )


def _torn_draw_of(
    subject: SamplerWrapper, ranks: Ranks, name: str, base: Base
) -> Iterator[Violation]:
    world_size = ranks.world_size
    cases = cases_of(ranks, (2 * world_size + 3, 8 * world_size))
    runs = record(subject, ranks, cases, lambda s, case: shares(s, case, base))

    def judge_run(run: Run) -> Sequence[Violation]:
        items = len(base(run.case.size))  # type: ignore[arg-type]
        return judge.judge_one_draw(run.history, *allowed(items, world_size, subject.traits))

    for violation in judge_each(runs, judge_run):
        yield replace(violation, what=f"{name}: {violation.what}")


# ------------------------------------------------------------- SMP-07: random streams

DRAWS = 3

MANY_DRAWS = 64
"""Samples of each rank, if its draws are compared; draws of few values, as of a coin, need many."""


class DrawingCollate:
    """Draws random numbers where augmentation does, in the process that reads the samples."""

    def __call__(self, samples: Any) -> tuple[int, dict[str, tuple[float, ...]]]:
        """The worker's number and the next numbers of each generator."""
        return worker_number(), {
            "python": tuple(random.random() for _ in range(DRAWS)),
            "numpy": tuple(np.random.random(DRAWS).tolist()),
            "torch": tuple(torch.rand(DRAWS).tolist()),
        }


class SigningCollate:
    """A collate function like another one, which adds the number of the worker that collates."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self._collate = collate

    def __call__(self, samples: Any) -> tuple[int, Any]:
        """The worker's number and the batch."""
        return worker_number(), self._collate(samples)


def _data_loader(subject: Loader, case: Case) -> torch.utils.data.DataLoader[Any]:
    loader = subject.make(case)
    if not isinstance(loader, torch.utils.data.DataLoader):
        raise TypeError(
            f"the trait 'augments' needs a torch DataLoader, not a {type(loader).__name__}"
        )
    return loader


def own_streams(subject: Loader, case: Case) -> Iterator[Record]:
    """The numbers that ``drawn=`` finds, by each worker of this rank in two epochs."""
    assert subject.drawn is not None, "without drawn= the global generators are compared"
    loader = _data_loader(subject, case)
    loader.collate_fn = SigningCollate(loader.collate_fn)
    for epoch in (0, 1):
        subject.set_epoch(loader, epoch)
        values: defaultdict[int, list[float]] = defaultdict(list)
        for worker, batch in islice(loader, 2 * case.size + 16):
            values[int(worker)] += _numbers(subject.drawn(batch))
        for worker, drawn in values.items():
            yield Draws(case.rank, epoch, worker, subject.name, tuple(drawn))


def _numbers(drawn: Any) -> Iterator[float]:
    """What a tensor, an array, a number, or several of them hold."""
    if isinstance(drawn, list | tuple):
        for part in drawn:
            yield from _numbers(part)
    else:
        yield from torch.as_tensor(drawn, dtype=torch.float64).reshape(-1).tolist()


def streams(subject: Loader, case: Case) -> Iterator[Record]:
    """The first numbers that each worker of this rank draws in two epochs."""
    loader = _data_loader(subject, case)
    loader.collate_fn = DrawingCollate()
    for epoch in (0, 1):
        subject.set_epoch(loader, epoch)
        seen: set[int] = set()
        for worker, numbers in islice(loader, 2 * case.size + 16):
            if worker in seen:
                continue
            seen.add(worker)
            for generator, values in numbers.items():
                yield Draws(case.rank, epoch, int(worker), generator, tuple(map(float, values)))


def find_equal_streams(subject: Loader, ranks: Ranks) -> tuple[Violation, ...]:
    """SMP-07, with 0 and 2 workers."""
    observe, look, each = streams, judge.judge_streams, 8
    if subject.drawn is not None:
        observe, look, each = own_streams, judge.judge_drawn, MANY_DRAWS

    def judge_run(run: Run) -> Sequence[Violation]:
        return look(run.history)

    cases = cases_of(ranks, (each * ranks.world_size,), workers=(0, 2))
    hard = cases[-1].with_hard_workers() if "any_workers" in subject.traits else ()
    found = judge_each(record(subject, ranks, cases, observe), judge_run)
    return found or find_first(subject, ranks, hard, observe, judge_run)


def _global_generators(subject: Loader) -> str:
    return "" if subject.drawn is not None else "global generators only: it has no drawn="


CHECKS = (
    Check(SMP_06, (SamplerWrapper,), find_torn_draw),
    Check(
        SMP_07,
        (Loader,),
        find_equal_streams,
        needs=frozenset({"augments"}),
        remark=_global_generators,
    ),
)
