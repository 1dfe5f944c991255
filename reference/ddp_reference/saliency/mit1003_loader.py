"""Loaders of MIT1003 as image files, for one process or for each rank of many."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler
from torch.utils.data.distributed import DistributedSampler

from ddp_reference.saliency.dataset import DatasetError, Item, MIT1003Dataset, find_files
from ddp_reference.saliency.samplers import (
    EpochShuffleSampler,
    ExactDistributedSampler,
    check_rank,
)
from ddp_reference.workers import worker_context

T = TypeVar("T")


def create_mit1003_dataloaders(
    data_path: str | Path,
    batch_size: int = 32,
    num_workers: int = 8,
    image_size: tuple[int, int] = (1024, 768),
    normalize: bool = True,
    seed: int = 42,
    world_size: int = 1,
    rank: int = 0,
    *,
    val_fraction: float = 0.1,
) -> tuple[DataLoader[Item], DataLoader[Item]]:
    """The training and the validation loader of this rank, over the files in ``data_path``.

    The split into training and validation depends on ``seed`` and the file names alone,
    so it is the same on all ranks. ``image_size`` is (width, height) in pixels; batches
    are :class:`~ddp_reference.saliency.dataset.Item` with a leading batch dimension, and
    ``index`` counts within the split.

    Training with ``world_size > 1`` uses ``DistributedSampler``: call
    ``train.sampler.set_epoch(epoch)`` before each epoch. Validation delivers each sample
    on exactly one rank, so ranks may have different numbers of batches.

    Raises :class:`~ddp_reference.saliency.dataset.DatasetError` for data that cannot be
    used and ``ValueError`` for a rank outside of the world size.
    """
    check_rank(world_size, rank)
    train_files, val_files = split(find_files(data_path), val_fraction, seed, data_path)
    return build_loaders(
        MIT1003Dataset(train_files, image_size, normalize),
        MIT1003Dataset(val_files, image_size, normalize),
        batch_size=batch_size,
        num_workers=num_workers,
        seed=seed,
        world_size=world_size,
        rank=rank,
    )


def split(
    samples: Sequence[T], val_fraction: float, seed: int, source: str | Path
) -> tuple[list[T], list[T]]:
    """Training and validation part, drawn with ``seed``, each in the given order, none empty."""
    if not 0.0 < val_fraction < 1.0:
        raise ValueError(f"val_fraction is {val_fraction}; it must lie between 0 and 1")
    if len(samples) < 2:
        raise DatasetError(
            f"{source} holds {len(samples)} sample; training and validation need one each"
        )
    number = min(max(1, round(len(samples) * val_fraction)), len(samples) - 1)
    order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(seed))
    validation = set(order[:number].tolist())
    return (
        [sample for place, sample in enumerate(samples) if place not in validation],
        [sample for place, sample in enumerate(samples) if place in validation],
    )


def build_loaders(
    train: Dataset[Item],
    val: Dataset[Item],
    *,
    batch_size: int,
    num_workers: int,
    seed: int,
    world_size: int,
    rank: int,
) -> tuple[DataLoader[Item], DataLoader[Item]]:
    """Both loaders of one rank over map-style data sets with a length."""

    def loader(dataset: Dataset[Item], sampler: Sampler[Any]) -> DataLoader[Item]:
        return DataLoader(
            dataset,
            batch_size=batch_size,
            sampler=sampler,
            num_workers=num_workers,
            multiprocessing_context=worker_context(num_workers, preload=type(dataset).__module__),
            persistent_workers=num_workers > 0,
            pin_memory=torch.cuda.is_available(),
            generator=rank_generator(seed, rank),
        )

    return (
        loader(train, train_sampler(train, seed=seed, world_size=world_size, rank=rank)),
        loader(val, ExactDistributedSampler(val, world_size, rank)),  # type: ignore[arg-type]
    )


def train_sampler(dataset: Dataset[Item], *, seed: int, world_size: int, rank: int) -> Sampler[Any]:
    """A plain seeded shuffle for one process, a shard of a common one for many."""
    if world_size == 1:
        return EpochShuffleSampler(dataset, seed)  # type: ignore[arg-type]
    return DistributedSampler(
        dataset, num_replicas=world_size, rank=rank, shuffle=True, seed=seed, drop_last=False
    )


def rank_generator(seed: int, rank: int) -> torch.Generator:
    """Source of the workers' seeds.

    It differs between ranks, so that random augmentation in a worker does not repeat what
    the worker with the same number draws on another rank; the samplers do not use it.
    """
    state = np.random.SeedSequence((seed, rank)).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state[0]) >> 1)
