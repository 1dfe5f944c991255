"""The samples that each rank gets: shuffled and equal in number for training, exact for validation.

For training on several ranks torch's own ``DistributedSampler`` is right: it gives
every rank equally many samples, by repeating up to ``world_size - 1`` of them. The
two samplers here are for the cases in which it is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sized

import torch
from torch.utils.data import Sampler


def check_rank(world_size: int, rank: int) -> None:
    """Raise ``ValueError`` unless ``rank`` is one of ``world_size`` ranks."""
    if world_size < 1:
        raise ValueError(f"world_size is {world_size}; it must be at least 1")
    if not 0 <= rank < world_size:
        raise ValueError(
            f"rank is {rank}, but with world_size={world_size} ranks are 0 to {world_size - 1}; "
            "pass dist.get_rank() and dist.get_world_size() after init_process_group()"
        )


class ExactDistributedSampler(Sampler[int]):
    """Every sample of the data set on exactly one rank: rank, rank + world size, and so on.

    ``DistributedSampler`` pads, so that a validation mean counts some samples twice
    (the values 1, 2, 3, 4, 0 on 2 ranks average to 1.667 in place of 2.0). Here nothing
    is repeated or left out; the price is that ranks may differ by one sample, or have
    none, so a loop over it must not run a collective for each batch. Sum up locally and
    reduce the sums and the counts once, at the end.

    Raises ``ValueError`` for a rank outside of the world size.
    """

    def __init__(self, dataset: Sized, world_size: int = 1, rank: int = 0) -> None:
        check_rank(world_size, rank)
        self._indices = range(rank, len(dataset), world_size)

    def __iter__(self) -> Iterator[int]:
        return iter(self._indices)

    def __len__(self) -> int:
        return len(self._indices)


class EpochShuffleSampler(Sampler[int]):
    """A shuffle for one process whose order depends on the seed and the epoch alone.

    ``RandomSampler`` with a seeded generator repeats from run to run, but its order in
    epoch 3 depends on epochs 0 to 2 having been drawn, so a resumed run sees another
    order. A loop that never calls :meth:`set_epoch` still gets a new order each time,
    as with ``shuffle=True``: the epoch goes up by one after each pass.
    """

    def __init__(self, dataset: Sized, seed: int = 0) -> None:
        self._size = len(dataset)
        self._seed = seed
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass that of ``epoch``."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self._seed + self._epoch)
        self._epoch += 1
        return iter(torch.randperm(self._size, generator=generator).tolist())

    def __len__(self) -> int:
        return self._size
