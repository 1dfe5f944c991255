"""SMP-01: orders that come from what each process has of its own: its clock."""

from __future__ import annotations

import time

import torch.distributed as dist
from torch.utils.data import DataLoader

from ddp_conformance.frame.case import Case
from ddp_conformance.frame.mutants import Mutant, Twin
from ddp_conformance.sampling.mutants.deliveries import BATCH, Batches, share
from ddp_conformance.sampling.subjects import Loader


def shuffled_by(case: Case, seed: int) -> Batches:
    """A loader whose order follows from the seed."""
    sampler = share(case, case.world_size, case.rank, seed=seed)
    return DataLoader(case.dataset, BATCH, sampler=sampler)


def seed_of_the_clock(case: Case) -> Batches:
    """Each rank takes the second in which it starts."""
    return shuffled_by(case, int(time.time()))


def clock_of_rank_zero(case: Case) -> Batches:
    """All ranks take the second of rank 0."""
    seed = [int(time.time())]
    dist.broadcast_object_list(seed, src=0)
    return shuffled_by(case, seed[0])


MUTANTS = (Mutant(Loader(seed_of_the_clock, {"pads"}), "SMP-01", "a seed from each rank's clock"),)

TWINS = (Twin(Loader(clock_of_rank_zero, {"pads"}), "a seed from the clock of rank 0"),)
