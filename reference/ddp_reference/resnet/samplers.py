"""The samples that each rank evaluates."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch.utils.data import Sampler


class ExactBatches(Sampler[list[int]]):
    """Batches of indices for evaluation: each sample on exactly one rank, once.

    ``DistributedSampler`` evens the ranks out by repeating samples, which counts them
    twice. Here a rank may have one sample less, or none; all ranks have equally many
    batches nevertheless, and the last of a rank may be empty. The first forward pass of
    an evaluation has DistributedDataParallel broadcast batch norm's buffers; with a rank
    that has no batch the others hang (torch 2.13). And a value that a step logs with
    ``sync_dist`` needs that step on all ranks.

    It is no ``BatchSampler`` on purpose: Lightning then refuses to replace its order
    by a padded one and asks for ``Trainer(use_distributed_sampler=False)``.
    """

    def __init__(self, count: int, batch_size: int, rank: int, world_size: int) -> None:
        self.count = count
        self.batch_size = batch_size
        self.rank = rank
        self.world_size = world_size

    def __len__(self) -> int:
        largest_shard = math.ceil(self.count / self.world_size)
        return math.ceil(largest_shard / self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        mine = range(self.rank, self.count, self.world_size)
        for number in range(len(self)):
            start = number * self.batch_size
            yield list(mine[start : start + self.batch_size])
