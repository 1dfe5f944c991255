"""SMP-01 and SMP-04: orders that depend on a clock, or on what each process has of its own."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import numpy as np
import torch.distributed as dist
from torch.utils.data import DataLoader

from ddp_conformance.framework.case import Case
from ddp_conformance.framework.mutants import BenignVariant, Mutant
from ddp_conformance.sampling.mutants.delivery_mutants import BATCH, Batches, share
from ddp_conformance.sampling.subjects import Loader, Sampler

Clock: TypeAlias = Callable[[int], float]


def shuffled_by(case: Case, seed: int) -> Batches:
    """A loader whose order follows from the seed."""
    sampler = share(case, case.world_size, case.rank, seed=seed)
    return DataLoader(case.dataset, BATCH, sampler=sampler)


def seed_of_the_clock(case: Case) -> Batches:
    """Each rank takes the second in which it starts."""
    return shuffled_by(case, int(time.time()))


def seed_of_the_kernels_clock(case: Case, clock: Clock = time.clock_gettime) -> Batches:
    """The same by the clock itself, which a default has kept since the import."""
    return shuffled_by(case, int(clock(time.CLOCK_REALTIME)))


def seed_of_numpys_clock(case: Case) -> Batches:
    """The same minute by NumPy, which calls C."""
    return shuffled_by(case, int(np.datetime64("now", "m").astype(int)))


def seed_of_the_date(case: Case) -> Batches:
    """All ranks take the day on which they start."""
    return shuffled_by(case, int(time.time()) // 86_400)


def clock_of_rank_zero(case: Case) -> Batches:
    """All ranks take the second of rank 0."""
    seed = [int(time.time())]
    dist.broadcast_object_list(seed, src=0)
    return shuffled_by(case, seed[0])


def seed_of_a_name(case: Case) -> Batches:
    """Each rank takes the hash of the data set's name."""
    return shuffled_by(case, hash("imagenet") % 2**31)


def hash_of_rank_zero(case: Case) -> Batches:
    """All ranks take that of rank 0."""
    seed = [hash("imagenet") % 2**31]
    dist.broadcast_object_list(seed, src=0)
    return shuffled_by(case, seed[0])


def seed_of_the_process(case: Case) -> Batches:
    """Each rank takes the number of its process."""
    return shuffled_by(case, os.getpid())


def seed_of_the_parent(case: Case) -> Batches:
    """Each rank takes the number of its parent, which a machine's ranks under torchrun share."""
    return shuffled_by(case, os.getppid())


def shards(case: Case) -> set[str]:
    """One file for each sample."""
    return {f"shard-{index:04d}.tar" for index in range(case.size)}


def dealt_out(case: Case, names: list[str]) -> list[int]:
    """The samples of this rank's files."""
    return [int(name[6:-4]) for name in names[case.rank :: case.world_size]]


def shards_of_a_set(case: Case) -> list[int]:
    """Files in the order in which a set has their names."""
    return dealt_out(case, list(shards(case)))


def shards_by_their_hash(case: Case) -> list[int]:
    """The hash of each file's name chooses its rank."""
    own = [name for name in shards(case) if hash(name) % case.world_size == case.rank]
    return sorted(int(name[6:-4]) for name in own)


def shards_of_a_sorted_set(case: Case) -> list[int]:
    """Files in the order of their names."""
    return dealt_out(case, sorted(shards(case)))


def sorted_shards(deal: Callable[[Case, list[str]], list[int]], case: Case) -> list[int]:
    """The same, with what deals them out as an argument."""
    return deal(case, sorted(shards(case)))


def shards_of_rank_zeros_set(case: Case) -> list[int]:
    """Files in the order in which rank 0's set has their names."""
    names = [list(shards(case))]
    dist.broadcast_object_list(names, src=0)
    return dealt_out(case, names[0])


def shards_of_the_first_set(case: Case) -> list[int]:
    """The same by a gather, of which every rank takes the first list."""
    names: list[list[str]] = [[] for _ in range(case.world_size)]
    dist.all_gather_object(names, list(shards(case)))
    return dealt_out(case, names[0])


UNEVEN = frozenset({"uneven"})
SHUFFLED = frozenset({"pads", "shuffles"})

MUTANTS = (
    Mutant(Loader(seed_of_the_clock, {"pads"}), "SMP-01", "a seed from each rank's clock"),
    Mutant(Loader(seed_of_the_kernels_clock, {"pads"}), "SMP-01", "a seed by clock_gettime", (2,)),
    Mutant(Loader(seed_of_numpys_clock, {"pads"}), "SMP-01", "a seed by datetime64('now')", (2,)),
    Mutant(Loader(seed_of_the_date, SHUFFLED), "SMP-04", "a seed from the date"),
    Mutant(Loader(seed_of_a_name, {"pads"}), "SMP-01", "a seed from hash() of a name"),
    Mutant(Loader(seed_of_the_process, {"pads"}), "SMP-01", "a seed from getpid()", (2,)),
    Mutant(Sampler(shards_of_a_set, UNEVEN), "SMP-01", "the order of a set of names"),
    Mutant(Sampler(shards_by_their_hash, UNEVEN), "SMP-01", "dealt out by hash() of names"),
    Mutant(
        Sampler(
            lambda case: dealt_out(case, list(shards(case))), UNEVEN, "shards_of_a_lambdas_set"
        ),
        "SMP-01",
        "the order of a set in a lambda",
        (2,),
    ),
)

BENIGN_VARIANTS = (
    BenignVariant(Loader(clock_of_rank_zero, {"pads"}), "a seed from the clock of rank 0"),
    BenignVariant(Loader(hash_of_rank_zero, {"pads"}), "a seed from hash() on rank 0", (2, 3)),
    BenignVariant(Loader(seed_of_the_parent, {"pads"}), "a seed from getppid()", (2,)),
    BenignVariant(Sampler(shards_of_a_sorted_set, UNEVEN), "a set of names, sorted", (2, 3)),
    BenignVariant(
        Sampler(partial(sorted_shards, dealt_out), UNEVEN, "shards_of_a_partial"),
        "a set of names, sorted, in a partial",
        (2,),
    ),
    BenignVariant(Sampler(shards_of_rank_zeros_set, UNEVEN), "the order of rank 0's set", (2, 3)),
    BenignVariant(Sampler(shards_of_the_first_set, UNEVEN), "the same by a gather", (2, 3)),
)
