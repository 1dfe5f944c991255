"""SMP: samplers and a stream that are right until there are more samples, epochs or workers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from ddp_conformance.framework.case import Case, IndexedItem
from ddp_conformance.framework.mutants import BenignVariant, Mutant
from ddp_conformance.sampling.mutants.delivery_mutants import BATCH, STREAM, TRAINING, SplitStream
from ddp_conformance.sampling.subjects import Loader, Sampler


def stops_at_64(case: Case) -> list[int]:
    """A limit of a debug run that was left in."""
    return list(range(case.rank, case.size, case.world_size))[:64]


def loses_two(case: Case) -> range:
    """Cuts the tail of a global batch of four for each rank, if it is half of a rank's four."""
    tail = case.size % (4 * case.world_size)
    return range(case.rank, case.size - (2 if tail == 2 else 0), case.world_size)


def numbered_in_int8(case: Case) -> list[int]:
    """Indices in int8, which was enough for a small data set."""
    own = np.arange(case.size).astype(np.int8)[case.rank :: case.world_size]
    return [int(index) for index in own]


class LateEpochs(DistributedSampler[IndexedItem]):
    """A table of seeds for three epochs; later ones get the last seed."""

    SEEDS = (3, 5, 7)

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(self.SEEDS[min(epoch, len(self.SEEDS) - 1)])


class OddAndEvenEpochs(LateEpochs):
    """Two orders in turn."""

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch % 2)


def order_repeats_late(case: Case) -> LateEpochs:
    """All epochs after epoch 2 have its order."""
    return LateEpochs(case.dataset, case.world_size, case.rank)


def order_alternates(case: Case) -> LateEpochs:
    """Epoch 2 has the order of epoch 0."""
    return OddAndEvenEpochs(case.dataset, case.world_size, case.rank)


class TwoHalves:
    """Shuffles two large batches: there are two orders, and both come often."""

    def __init__(self, case: Case) -> None:
        padded = case.size + -case.size % case.world_size
        self._own = [i % case.size for i in range(case.rank, padded, case.world_size)]
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the order."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[int]:
        middle = len(self._own) // 2
        halves = [self._own[:middle], self._own[middle:]]
        random.Random(5 + self._epoch).shuffle(halves)
        return iter(halves[0] + halves[1])


class TwoWorkers(SplitStream):
    """Splits by the parity of the worker's number."""

    def __init__(self, case: Case) -> None:
        super().__init__(case, by_rank=True, by_worker=True)

    def _share(self, worker: int, workers: int) -> range:
        return super()._share(worker % 2, min(workers, 2))


def length(index: int) -> int:
    """The length of a text."""
    return 5 + index * 37 % 101


class SortedInGroups(DistributedSampler[IndexedItem]):
    """Shuffles, then sorts each group by length, so that a batch has texts of some length."""

    def __init__(self, *arguments: Any, group: int) -> None:
        super().__init__(*arguments)
        self.group = group

    def __iter__(self) -> Iterator[IndexedItem]:
        own: list[Any] = list(super().__iter__())
        for start in range(0, len(own), self.group):
            yield from sorted(own[start : start + self.group], key=length, reverse=True)


def few_in_a_group(case: Case) -> SortedInGroups:
    """Groups of 25 samples."""
    return SortedInGroups(case.dataset, case.world_size, case.rank, group=25)


def many_in_a_group(case: Case) -> SortedInGroups:
    """Groups of 400 samples: 50 batches of 8."""
    return SortedInGroups(case.dataset, case.world_size, case.rank, group=400)


def split_by_parity(case: Case) -> DataLoader[IndexedItem]:
    """Right with up to two workers."""
    return DataLoader(TwoWorkers(case), BATCH, num_workers=case.num_workers)


MUTANTS = (
    Mutant(Sampler(stops_at_64, {"exact", "uneven"}), "SMP-01", "64 samples at most"),
    Mutant(Sampler(loses_two, {"exact", "uneven"}), "SMP-01", "a tail of two is lost"),
    Mutant(Sampler(numbered_in_int8, {"exact", "uneven"}), "SMP-01", "indices in int8"),
    Mutant(Sampler(order_repeats_late, TRAINING), "SMP-04", "one order from epoch 2 on"),
    Mutant(Sampler(order_alternates, TRAINING), "SMP-04", "two orders in turn"),
    Mutant(Loader(split_by_parity, STREAM), "SMP-05", "right with two workers", (2,)),
)

BENIGN_VARIANTS = (
    BenignVariant(Sampler(TwoHalves, TRAINING), "few orders, drawn for each epoch"),
    BenignVariant(Sampler(few_in_a_group, TRAINING), "groups of 25 sorted by length"),
    BenignVariant(Sampler(many_in_a_group, TRAINING), "groups of 400 sorted by length"),
)
