"""How the samples of one window are dealt to the ranks.

Both samplers derive from torch's ``DistributedSampler``, because Lightning leaves such
a sampler alone and would wrap any other one: with ``use_distributed_sampler=True`` its
own sampler repeats samples in validation and counts them twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sized

import numpy as np
from torch.utils.data.distributed import DistributedSampler

from ddp_reference.windows.dataset import RepeatedIndex
from ddp_reference.windows.placement import Placement


class PaddedSampler(DistributedSampler[int]):
    """Training: a new order in each epoch, the same number of samples on every rank.

    The order is a function of (seed, epoch) alone. Ranks must not differ in their number
    of batches, since each backward pass is a collective, so a number of samples that the
    ranks do not divide is filled up from the beginning of the order, as
    ``RepeatedIndex``.
    """

    def __init__(self, dataset: Sized, placement: Placement, *, seed: int) -> None:
        super().__init__(
            dataset,  # type: ignore[arg-type]  # torch asks for a Dataset, and reads its length
            num_replicas=placement.world_size,
            rank=placement.rank,
            shuffle=True,
            seed=seed,
        )

    def __iter__(self) -> Iterator[int]:
        order = self._order()
        for position in range(self.rank, self.total_size, self.num_replicas):
            index = order[position % len(order)]
            yield index if position < len(order) else RepeatedIndex(index)

    def _order(self) -> list[int]:
        generator = np.random.default_rng([self.seed, self.epoch])
        return [int(index) for index in generator.permutation(len(self.dataset))]  # type: ignore[arg-type]


class ExactSampler(DistributedSampler[int]):
    """Validation: every sample on exactly one rank, in order of time.

    Ranks may differ by one sample, so the evaluation must use no collective per batch. A rank
    without a sample gets one ``RepeatedIndex``: Lightning skips the whole evaluation on a rank
    without batches, hooks included, and its peers then wait in the metric's collective for ever.
    """

    def __init__(self, dataset: Sized, placement: Placement) -> None:
        super().__init__(
            dataset,  # type: ignore[arg-type]  # torch asks for a Dataset, and reads its length
            num_replicas=placement.world_size,
            rank=placement.rank,
            shuffle=False,
        )
        own = list(range(placement.rank, len(dataset), placement.world_size))
        self._indices = own or [RepeatedIndex(0)]

    def __iter__(self) -> Iterator[int]:
        return iter(self._indices)

    def __len__(self) -> int:
        return len(self._indices)
