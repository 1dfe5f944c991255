"""WIN-06: loaders with workers that take themselves for rank 0, and one with workers that do not.

Workers that are started by spawn import this module, so it imports no Lightning.
"""

from __future__ import annotations

import os
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from ddp_conformance.framework.case import Case, worker_number
from ddp_conformance.framework.mutants import BenignVariant, Mutant
from ddp_conformance.sampling.subjects import Loader

Item: TypeAlias = dict[str, Any]


class RankInDataset(Dataset[Item]):
    """The data set carries the rank: a worker gets it with its copy, however it was started."""

    def __init__(self, case: Case) -> None:
        self.size = case.size
        self.found = case.rank

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Item:
        return {"index": index, "origin": torch.tensor([self.rank(), worker_number()])}

    def rank(self) -> int:
        """The rank that this code takes itself for."""
        return self.found


class AsksGroupInWorker(RankInDataset):
    """Right with fork, which copies the process group's objects; 0 in a new process."""

    def rank(self) -> int:
        return dist.get_rank() if dist.is_initialized() else 0


class AsksEnvironmentInWorker(RankInDataset):
    """Right under torchrun; 0 under Lightning's launcher, which sets no ``RANK``."""

    def rank(self) -> int:
        return int(os.environ.get("RANK", "0"))


def loader_of(dataset: RankInDataset, case: Case) -> DataLoader[Item]:
    """This rank's loader, with the case's start method."""
    return DataLoader(
        dataset,
        batch_size=2,
        sampler=DistributedSampler(dataset, case.world_size, case.rank, shuffle=False),
        num_workers=case.num_workers,
        multiprocessing_context=case.start_method,
    )


def rank_in_dataset(case: Case) -> DataLoader[Item]:
    """The rank in the data set."""
    return loader_of(RankInDataset(case), case)


def asks_group_in_worker(case: Case) -> DataLoader[Item]:
    """The process group, else 0."""
    return loader_of(AsksGroupInWorker(case), case)


def asks_environment_in_worker(case: Case) -> DataLoader[Item]:
    """``RANK``, else 0."""
    return loader_of(AsksEnvironmentInWorker(case), case)


TELLS = frozenset({"pads", "tells_rank"})

MUTANTS = (
    Mutant(Loader(asks_group_in_worker, TELLS), "WIN-06", "0 without a process group", (2,)),
    Mutant(Loader(asks_environment_in_worker, TELLS), "WIN-06", "RANK, 0 if it is missing"),
)

BENIGN_VARIANTS = (
    BenignVariant(Loader(rank_in_dataset, TELLS), "the rank comes with the data set"),
)
