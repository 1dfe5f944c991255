"""SMP-06 and SMP-07: samplers dealt out wrongly, and random streams that ranks share."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import chain
from typing import Any, TypeAlias, TypedDict

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset
from torch.utils.data import Sampler as TorchSampler

from ddp_conformance.framework.case import Case, IndexedItem
from ddp_conformance.framework.mutants import BenignVariant, Mutant
from ddp_conformance.sampling.mutants.delivery_mutants import BATCH, SEED, TRAINING, share
from ddp_conformance.sampling.subjects import Loader, SamplerWrapper

Batches: TypeAlias = DataLoader[IndexedItem]
UserSampler: TypeAlias = TorchSampler[Any]

# ------------------------------------------------------------- SMP-06: one draw


def deal_out(items: list[Any], case: Case) -> list[Any]:
    """This rank's share of ``items``, filled up from their start to equal numbers."""
    length = len(items) + -len(items) % case.world_size
    return [items[place % len(items)] for place in range(case.rank, length, case.world_size)]


def drawn_on_every_rank(case: Case, sampler: UserSampler) -> Iterator[Any]:
    """Every rank draws with its own generator and takes its places of that draw."""
    return iter(deal_out(list(sampler), case))


def drawn_on_rank_zero(case: Case, sampler: UserSampler) -> Iterator[Any]:
    """One rank draws, and all take their places of that draw."""
    drawn = [list(sampler) if case.rank == 0 else None]
    dist.broadcast_object_list(drawn, src=0)
    return iter(deal_out(drawn[0] or [], case))


def filled_from_another_draw(case: Case, sampler: UserSampler) -> Iterator[Any]:
    """One rank draws until there is enough for equal numbers, and all take their places of that."""
    drawn = [_enough(list(sampler), case, sampler) if case.rank == 0 else []]
    dist.broadcast_object_list(drawn, src=0)
    return iter(drawn[0][case.rank :: case.world_size])


def _enough(items: list[Any], case: Case, sampler: UserSampler) -> list[Any]:
    length = len(items) + -len(items) % case.world_size
    while len(items) < length:
        items += sampler
    return items[:length]


def a_draw_for_each_rank(case: Case, sampler: UserSampler) -> Iterator[Any]:
    """One rank draws for all, and each takes its places of a draw of its own."""
    draws = [[list(sampler) for _ in range(case.world_size)] if case.rank == 0 else []]
    dist.broadcast_object_list(draws, src=0)
    return iter(deal_out(draws[0][case.rank], case))


def batches_torn_apart(case: Case, sampler: UserSampler) -> Iterator[Any]:
    """Shards the indices within the batches, so that a batch is not what the user built."""
    items = [list(sampler) if case.rank == 0 else None]
    dist.broadcast_object_list(items, src=0)
    drawn = items[0] or []
    if not drawn or isinstance(drawn[0], int):
        return iter(deal_out(drawn, case))
    indices = deal_out(list(chain.from_iterable(drawn)), case)
    return iter([indices[start : start + BATCH] for start in range(0, len(indices), BATCH)])


def refused_on_one_rank(case: Case, sampler: UserSampler) -> Iterator[Any]:
    """Raises on one rank only; the others wait for it in training."""
    if case.rank == 1:
        raise TypeError(f"{type(sampler).__name__} cannot be dealt out to ranks")
    return drawn_on_every_rank(case, sampler)


def refused_everywhere(case: Case, sampler: UserSampler) -> Iterator[Any]:
    """Does not support samplers that draw at random, and raises on every rank."""
    raise TypeError(f"{type(sampler).__name__} cannot be dealt out to {case.world_size} ranks")


# ------------------------------------------------------------- SMP-07: random streams


def one_seed_for_all(case: Case) -> Batches:
    """``seed_everything`` with one seed on all ranks, and augmentation that follows it."""
    random.seed(SEED)
    np.random.seed(SEED)
    torch.manual_seed(SEED)
    return _augmenting(case)


def one_generator_for_all(case: Case) -> Batches:
    """The generator that makes the loader repeatable also seeds its workers."""
    return _augmenting(case, generator=torch.Generator().manual_seed(SEED))


def _numpy_by_worker(worker: int) -> None:
    np.random.seed(SEED + worker)


def numpy_seed_by_worker(case: Case) -> Batches:
    """A known recipe for NumPy in workers; it ignores the rank and the epoch."""
    return _augmenting(case, worker_init_fn=_numpy_by_worker)


class _SeedByRank:
    def __init__(self, rank: int) -> None:
        self._rank = rank

    def __call__(self, worker: int) -> None:
        random.seed(f"{self._rank}/{worker}")


def seed_without_epoch(case: Case) -> Batches:
    """Differs by rank and worker, but each epoch starts the same stream again."""
    return _augmenting(case, worker_init_fn=_SeedByRank(case.rank))


def generator_by_rank(case: Case) -> Batches:
    """Repeatable, and another stream on each rank."""
    return _augmenting(case, generator=torch.Generator().manual_seed(SEED + 1000 * case.rank))


def _numpy_from_torch(worker: int) -> None:
    np.random.seed(torch.initial_seed() % 2**32)


def numpy_seed_from_torch(case: Case) -> Batches:
    """NumPy seeded from torch's seed, which differs by rank, worker and epoch."""
    generator = torch.Generator().manual_seed(SEED + 1000 * case.rank)
    return _augmenting(case, generator=generator, worker_init_fn=_numpy_from_torch)


def _augmenting(case: Case, **options: Any) -> Batches:
    sampler = share(case, case.world_size, case.rank)
    return DataLoader(case.dataset, BATCH, sampler=sampler, num_workers=case.num_workers, **options)


class Crop(TypedDict):
    """A sample, and what was drawn for it."""

    index: int
    crop: float


class Crops(Dataset[Crop]):
    """Augments by a generator of its own, which is copied with it into every worker."""

    def __init__(self, size: int, seed: int | None) -> None:
        self.size = size
        self.generator = None if seed is None else np.random.default_rng(seed)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Crop:
        # Made where it is used: torch has seeded itself there by rank, worker and epoch.
        self.generator = self.generator or np.random.default_rng(torch.initial_seed())
        return {"index": index, "crop": self.draw(self.generator)}

    def draw(self, generator: np.random.Generator) -> float:
        """One number."""
        return float(generator.random())


class Flips(Crops):
    """Draws one of two numbers: short streams of them are often the same."""

    def draw(self, generator: np.random.Generator) -> float:
        return float(generator.integers(2))


class Rarely(Crops):
    """Draws one of two numbers, of which one hardly ever comes."""

    def draw(self, generator: np.random.Generator) -> float:
        return float(generator.random() < 0.001)


def crops_of(batch: Any) -> Any:
    """What was drawn for the samples of a batch."""
    return batch["crop"]


def crops_from_one_seed(case: Case) -> DataLoader[Crop]:
    """``default_rng(0)`` in the data set."""
    return _cropping(Crops(case.size, SEED), case)


def flips_from_one_seed(case: Case) -> DataLoader[Crop]:
    """The same for flips: one draw proves little, many draws do."""
    return _cropping(Flips(case.size, SEED), case)


def crops_from_workers(case: Case) -> DataLoader[Crop]:
    """A generator that is made in the worker, of its seed."""
    return _cropping(Crops(case.size, None), case)


def flips_from_workers(case: Case) -> DataLoader[Crop]:
    """The same for flips."""
    return _cropping(Flips(case.size, None), case)


def rarely_flips(case: Case) -> DataLoader[Crop]:
    """Flips almost never, so that all streams are equal by chance."""
    return _cropping(Rarely(case.size, None), case)


def _cropping(crops: Crops, case: Case) -> DataLoader[Crop]:
    torch.manual_seed(SEED + 1000 * case.rank)
    sampler = share(case, case.world_size, case.rank)
    return DataLoader(crops, BATCH, sampler=sampler, num_workers=case.num_workers)


AUGMENTING = TRAINING | {"augments"}

MUTANTS = (
    Mutant(SamplerWrapper(drawn_on_every_rank, {"pads"}), "SMP-06", "each rank draws for itself"),
    Mutant(SamplerWrapper(a_draw_for_each_rank, {"pads"}), "SMP-06", "a draw for each rank"),
    Mutant(SamplerWrapper(batches_torn_apart, {"pads"}), "SMP-06", "batches torn apart"),
    Mutant(SamplerWrapper(refused_on_one_rank, {"pads"}), "SMP-06", "one rank refuses"),
    Mutant(Loader(one_seed_for_all, AUGMENTING), "SMP-07", "one seed on all ranks"),
    Mutant(
        Loader(one_generator_for_all, AUGMENTING), "SMP-07", "workers seeded from one generator"
    ),
    Mutant(Loader(numpy_seed_by_worker, AUGMENTING), "SMP-07", "NumPy seeded by worker number"),
    Mutant(Loader(seed_without_epoch, AUGMENTING), "SMP-07", "the same seed in every epoch"),
    Mutant(
        Loader(crops_from_one_seed, AUGMENTING, drawn=crops_of),
        "SMP-07",
        "a generator that the data set has from one seed",
    ),
    Mutant(
        Loader(flips_from_one_seed, AUGMENTING, drawn=crops_of),
        "SMP-07",
        "flips of the data set's own generator",
    ),
)

BENIGN_VARIANTS = (
    BenignVariant(SamplerWrapper(drawn_on_rank_zero, {"pads"}), "one draw for all ranks"),
    BenignVariant(
        SamplerWrapper(filled_from_another_draw, {"pads"}), "filled up from another draw"
    ),
    BenignVariant(SamplerWrapper(refused_everywhere), "all ranks refuse"),
    BenignVariant(
        Loader(generator_by_rank, AUGMENTING), "workers seeded from a generator per rank"
    ),
    BenignVariant(
        Loader(numpy_seed_from_torch, AUGMENTING), "NumPy seeded in the worker, from torch"
    ),
    BenignVariant(
        Loader(crops_from_workers, AUGMENTING, drawn=crops_of),
        "a generator of the data set's own, made in the worker",
    ),
    BenignVariant(
        Loader(flips_from_workers, AUGMENTING, drawn=crops_of), "flips of such a generator"
    ),
    BenignVariant(Loader(rarely_flips, AUGMENTING, drawn=crops_of), "flips that hardly ever come"),
)
