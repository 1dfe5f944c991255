"""The samples that a rank sees, in which order, and how much each one counts."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from ddp_reference.cache import LatentCache
from ddp_reference.workers import worker_context

from .models import LATENT


class SampleKey(NamedTuple):
    """What the sampler hands to the data set.

    The epoch travels with each item, so that it is right in workers of any kind and
    age. ``weight`` is 0 for a sample that only pads a short rank, else 1.
    """

    epoch: int
    item: int
    weight: float

    def counted(self) -> int | None:
        """The item; None for padding."""
        return self.item if self.weight else None


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The micro-batches and optimizer steps of an epoch, as arithmetic and without communication.

    Position p of the epoch's order belongs to rank p mod world_size. Every ``local_batch``
    positions of a rank are a micro-batch, every ``accumulate`` of these a step; so step s
    covers the same ``global_batch`` positions whatever the number of ranks.
    """

    samples: int
    local_batch: int
    accumulate: int
    world_size: int
    rank: int
    pads: bool

    @property
    def global_batch(self) -> int:
        return self.local_batch * self.accumulate * self.world_size

    @property
    def steps(self) -> int:
        return math.ceil(self.samples / self.global_batch)

    @property
    def delivered(self) -> int:
        """Samples of this rank per epoch, padding included."""
        share = self.samples if self.pads else self.samples - self.rank
        return math.ceil(share / self.world_size)

    @property
    def batches(self) -> int:
        """Micro-batches of this rank per epoch."""
        return math.ceil(self.delivered / self.local_batch)

    def step_of(self, batch: int) -> int:
        return batch // self.accumulate

    def closes_step(self, batch: int) -> bool:
        return (batch + 1) % self.accumulate == 0 or batch + 1 == self.batches

    def loss_scale(self, batch: int) -> float:
        """Factor for this rank's *sum* of losses, so that the ranks' mean is the step's mean.

        DDP and FSDP average gradients over ranks. A mean per rank would give a sample of
        a short batch more say than one of a full batch.
        """
        start = self.step_of(batch) * self.global_batch
        return self.world_size / min(self.global_batch, self.samples - start)


class EpochSampler(DistributedSampler[SampleKey]):
    """DistributedSampler whose keys carry the epoch and tell padding from samples.

    Without ``pads`` each sample is delivered exactly once and ranks may differ by one.
    """

    def __init__(self, plan: BatchPlan, *, shuffle: bool, seed: int) -> None:
        everything: Any = range(plan.samples)  # only its length is asked
        super().__init__(everything, plan.world_size, plan.rank, shuffle, seed, drop_last=False)
        self._plan = plan
        self._begin = 0

    def begin_at(self, batch: int) -> None:
        """Leave out the micro-batches before ``batch`` in the next pass, to resume there."""
        self._begin = batch * self._plan.local_batch

    def __iter__(self) -> Iterator[SampleKey]:
        indices: Iterator[Any] = super().__iter__()
        for turn, index in enumerate(indices):
            position = turn * self._plan.world_size + self._plan.rank
            real = position < self._plan.samples
            if turn >= self._begin and (real or self._plan.pads):
                yield SampleKey(self.epoch, int(index), float(real))

    def __len__(self) -> int:
        return max(0, self._plan.delivered - self._begin)


class LatentPairs(Dataset[dict[str, Tensor]]):
    """A range of a cache's samples, each with its own noise.

    Adds to the cache's keys: ``id`` and ``epoch`` int64, ``weight`` float32, ``noise``
    (LATENT,) standard normal and ``level`` (1,) uniform in [0, 1). Noise is a function of
    seed, epoch and id alone: the same for any number of ranks and after a resume, another
    in every epoch and for any two samples.
    """

    def __init__(self, cache: LatentCache, samples: range, seed: int) -> None:
        self._cache = cache
        self._samples = samples
        self._seed = seed

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, key: SampleKey) -> dict[str, Tensor]:
        ident = self._samples[key.item]
        generator = torch.Generator().manual_seed(mix(self._seed, key.epoch, ident))
        return {
            **self._cache[ident],
            "id": torch.tensor(ident),
            "epoch": torch.tensor(key.epoch),
            "weight": torch.tensor(key.weight),
            "noise": torch.randn(LATENT, generator=generator),
            "level": torch.rand(1, generator=generator),
        }


def mix(*numbers: int) -> int:
    """One well-spread 63-bit seed from several small numbers (splitmix64's finaliser)."""
    state = 0
    for number in numbers:
        state = (state ^ number) + 0x9E3779B97F4A7C15 & (1 << 64) - 1
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & (1 << 64) - 1
        state = (state ^ state >> 27) * 0x94D049BB133111EB & (1 << 64) - 1
        state ^= state >> 31
    return state >> 1


def build_latent_pair_loader(
    dataset: LatentPairs, sampler: EpochSampler, plan: BatchPlan, *, workers: int, cuda: bool
) -> DataLoader[dict[str, Tensor]]:
    """The loader of one rank. To be built after the process group, whose rank it depends on.

    It draws the seeds of its workers from a generator of its own: a resumed epoch makes an
    iterator more, and would leave the rank's own generator in another state.

    Workers are not forked from a rank: see :func:`~ddp_reference.workers.worker_context`. The
    cache is mapped again in them, at no cost.
    """
    return DataLoader(
        dataset,
        batch_size=plan.local_batch,
        sampler=sampler,
        num_workers=workers,
        generator=torch.Generator(),
        pin_memory=cuda,
        multiprocessing_context=worker_context(workers, preload=__name__),
    )


def seed_workers(loader: DataLoader[dict[str, Tensor]], seed: int) -> None:
    """Say what the loader's next workers draw their seeds from: a function of rank and epoch."""
    assert isinstance(loader.generator, torch.Generator)
    loader.generator.manual_seed(seed)
