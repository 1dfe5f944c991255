"""SMP-01 to SMP-05: loaders and samplers with the defects that sharding code has in the wild."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, get_worker_info
from torch.utils.data.distributed import DistributedSampler

from ddp_conformance.framework.case import Case, IndexDataset, IndexedItem, worker_number
from ddp_conformance.framework.mutants import BenignVariant, Mutant
from ddp_conformance.sampling.subjects import Loader, Sampler

Batches: TypeAlias = DataLoader[IndexedItem]

SEED = 42
BATCH = 2
TRAINING = frozenset({"pads", "shuffles"})


def no_epoch(component: object, epoch: int) -> None:
    """A training loop that never calls ``set_epoch``."""


def share(
    case: Case, world_size: int, rank: int, shuffle: bool = True, seed: int = SEED, **options: bool
) -> DistributedSampler[IndexedItem]:
    """torch's sampler over the data set of the case."""
    return DistributedSampler(case.dataset, world_size, rank, shuffle, seed, **options)


# ------------------------------------------------------------- SMP-01: shards


def shuffled_same_seed(case: Case) -> Batches:
    """No sampler at all: every rank trains on everything, in the same order."""
    return _shuffled(case, SEED)


def shuffled_rank_seed(case: Case) -> Batches:
    """No sampler at all: every rank trains on everything, in an order of its own."""
    return _shuffled(case, SEED + case.rank)


def _shuffled(case: Case, seed: int) -> Batches:
    generator = torch.Generator().manual_seed(seed)
    return DataLoader(case.dataset, BATCH, shuffle=True, generator=generator)


def rank_zero_everywhere(case: Case) -> Batches:
    """The default ``rank=0`` of a helper function, never overridden."""
    sampler = share(case, case.world_size, rank=0)
    return DataLoader(case.dataset, BATCH, sampler=sampler)


def seed_is_rank(case: Case) -> Batches:
    """Each rank takes its share of another permutation."""
    sampler = share(case, case.world_size, case.rank, seed=case.rank)
    return DataLoader(case.dataset, BATCH, sampler=sampler)


def distributed(case: Case) -> Batches:
    """All ranks share one permutation."""
    sampler = share(case, case.world_size, case.rank)
    return DataLoader(case.dataset, BATCH, sampler=sampler)


def epoch_is_rank(loader: Any, epoch: int) -> None:
    """The arguments mixed up: the rank in place of the epoch."""
    loader.sampler.set_epoch(loader.sampler.rank)


# A script that reads the rank at import, before there is a process group.
WORLD_SIZE_AT_IMPORT = dist.get_world_size() if dist.is_initialized() else 1
RANK_AT_IMPORT = dist.get_rank() if dist.is_initialized() else 0


def built_before_init(case: Case) -> Batches:
    """A loader for the world as it looked before ``init_process_group``: one rank."""
    sampler = share(case, WORLD_SIZE_AT_IMPORT, RANK_AT_IMPORT)
    return DataLoader(case.dataset, BATCH, sampler=sampler)


def distributed_dropping(case: Case) -> Batches:
    """Drops the tail, and declares it."""
    sampler = share(case, case.world_size, case.rank, drop_last=True)
    return DataLoader(case.dataset, BATCH, sampler=sampler)


def batch_sampler(case: Case) -> BatchSampler:
    """Yields batches of indices; the epoch has to reach the sampler inside."""
    sampler: Any = share(case, case.world_size, case.rank)
    return BatchSampler(sampler, BATCH, drop_last=False)


# ------------------------------------------------------------- SMP-02: equal numbers


def contiguous_chunks(case: Case) -> range:
    """Chunks of equal length but the last: 5 samples on 4 ranks are 2, 2, 1 and 0."""
    chunk = -(-case.size // case.world_size)
    start = min(case.rank * chunk, case.size)
    return range(start, min(start + chunk, case.size))


def contiguous_padded(case: Case) -> list[int]:
    """The same chunks, the last ones filled up from the start of the data set."""
    chunk = -(-case.size // case.world_size)
    start = case.rank * chunk
    return [index % case.size for index in range(start, start + chunk)]


class StreamDataset(IterableDataset[IndexedItem]):
    """A stream of files of three samples each, file ``i`` read by rank ``i % world_size``."""

    FILE = 3

    def __init__(self, case: Case) -> None:
        self._case = case

    def __iter__(self) -> Iterator[IndexedItem]:
        for index in range(self._case.size):
            if index // self.FILE % self._case.world_size == self._case.rank:
                yield {"index": index, "worker": -1}


def uneven_files(case: Case) -> Batches:
    """Files dealt to ranks, and ranks with more files than others."""
    return DataLoader(StreamDataset(case), BATCH)


class SkippingLoader:
    """Leaves out a batch with a damaged sample, on the rank that has it."""

    DAMAGED = 0

    def __init__(self, loader: Batches) -> None:
        self._loader = loader
        self.sampler = loader.sampler

    def __iter__(self) -> Iterator[Any]:
        for batch in self._loader:
            if self.DAMAGED not in batch["index"].tolist():
                yield batch


def skips_a_batch(case: Case) -> SkippingLoader:
    """``except: continue`` around the batch, which only one rank meets."""
    return SkippingLoader(distributed(case))


# ------------------------------------------------------------- SMP-03: evaluation


def padded_validation(case: Case) -> Batches:
    """The sampler of training used for validation: it repeats samples."""
    sampler = share(case, case.world_size, case.rank, shuffle=False)
    return DataLoader(case.dataset, BATCH, sampler=sampler)


def dropping_validation(case: Case) -> Batches:
    """Padding avoided by leaving samples out."""
    sampler = share(case, case.world_size, case.rank, shuffle=False, drop_last=True)
    return DataLoader(case.dataset, BATCH, sampler=sampler)


def strided_validation(case: Case) -> Batches:
    """Every world-size-th sample, with nothing added; ranks may differ by one."""
    indices = range(case.rank, case.size, case.world_size)
    return DataLoader(case.dataset, BATCH, sampler=indices)


# ------------------------------------------------------------- SMP-04: order


class ReorderedDataset(IndexDataset):
    """Shuffles inside the data set, by the epoch of ``set_epoch``."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._epoch = self.new_epoch()

    def new_epoch(self) -> Tensor:
        """Where the epoch is kept: an int64 tensor [1]."""
        return torch.zeros(1, dtype=torch.int64)

    def set_epoch(self, epoch: int) -> None:
        """Set the order of ``epoch``, in the processes that see this object."""
        self._epoch.fill_(epoch)

    def __getitem__(self, index: int) -> IndexedItem:
        generator = torch.Generator().manual_seed(SEED + int(self._epoch))
        return super().__getitem__(int(torch.randperm(self.size, generator=generator)[index]))


class SharedEpochDataset(ReorderedDataset):
    """The same with the epoch in shared memory, where the workers see it change."""

    def new_epoch(self) -> Tensor:
        """Where the epoch is kept, in every process."""
        epoch = super().new_epoch()
        epoch.share_memory_()  # type: ignore[no-untyped-call]
        return epoch


def epoch_stuck_in_workers(case: Case) -> Batches:
    """Persistent workers keep the copy of the data set that they started with."""
    return _persistent(case, ReorderedDataset(case.size))


def epoch_shared_with_workers(case: Case) -> Batches:
    """Persistent workers that learn the epoch."""
    return _persistent(case, SharedEpochDataset(case.size))


def _persistent(case: Case, dataset: ReorderedDataset) -> Batches:
    sampler: DistributedSampler[IndexedItem] = DistributedSampler(
        dataset, case.world_size, case.rank, shuffle=False
    )
    return DataLoader(dataset, BATCH, sampler=sampler, num_workers=1, persistent_workers=True)


# ------------------------------------------------------------- SMP-05: streams


class SplitStream(IterableDataset[IndexedItem]):
    """A stream that is split by rank, by worker, by both or not at all."""

    def __init__(self, case: Case, by_rank: bool, by_worker: bool, padded: bool = False) -> None:
        self._case = case
        self._by_rank = by_rank
        self._by_worker = by_worker
        self._padded = padded

    def __iter__(self) -> Iterator[IndexedItem]:
        worker = get_worker_info()
        for index in self._share(worker.id, worker.num_workers) if worker else self._share(0, 1):
            yield {"index": index % self._case.size, "worker": worker_number()}

    def _share(self, worker: int, workers: int) -> range:
        case = self._case
        end = case.size + (-case.size % case.world_size if self._padded else 0)
        share = range(case.rank, end, case.world_size) if self._by_rank else range(end)
        return share[worker::workers] if self._by_worker else share


def split_by_nothing(case: Case) -> Batches:
    """Every worker of every rank reads the whole stream."""
    return _streaming(case, SplitStream(case, by_rank=False, by_worker=False))


def split_by_rank_only(case: Case) -> Batches:
    """Right until ``num_workers=2``: then both workers read the rank's whole share."""
    return _streaming(case, SplitStream(case, by_rank=True, by_worker=False))


def split_by_worker_only(case: Case) -> Batches:
    """Worker 0 of every rank reads the same samples."""
    return _streaming(case, SplitStream(case, by_rank=False, by_worker=True))


def split_by_both(case: Case) -> Batches:
    """Split by rank and worker; ranks may differ by one sample."""
    return _streaming(case, SplitStream(case, by_rank=True, by_worker=True))


def split_by_both_padded(case: Case) -> Batches:
    """Padded to equal shares, and split by rank and worker."""
    return _streaming(case, SplitStream(case, by_rank=True, by_worker=True, padded=True))


class NotRewound(SplitStream):
    """Goes on where the last epoch stopped, if its workers live that long."""

    def __init__(self, case: Case) -> None:
        super().__init__(case, by_rank=True, by_worker=True)
        self._open: Iterator[IndexedItem] | None = None

    def __iter__(self) -> Iterator[IndexedItem]:
        if self._open is None:
            self._open = super().__iter__()
        return self._open


class RankInGlobal(SplitStream):
    """Takes its share from a global variable, which a forked worker inherits."""

    ranks = (0, 1)
    """Rank and world size, set in the process that makes the loader."""

    def _share(self, worker: int, workers: int) -> range:
        rank, world_size = type(self).ranks
        return range(rank + world_size * worker, self._case.size, world_size * workers)


def stream_not_rewound(case: Case) -> Batches:
    """Right with workers that are forked for each epoch."""
    dataset = NotRewound(case) if case.num_workers else SplitStream(case, True, True)
    return DataLoader(dataset, BATCH, **case.worker_options)


def rank_in_global(case: Case) -> Batches:
    """Keeps the rank in a global variable: right only with workers that are forked."""
    RankInGlobal.ranks = (case.rank, case.world_size)
    return DataLoader(RankInGlobal(case, True, True), BATCH, **case.worker_options)


def split_under_any_workers(case: Case) -> Batches:
    """Right: rank and world size travel with the data set."""
    return DataLoader(SplitStream(case, True, True), BATCH, **case.worker_options)


def _streaming(case: Case, dataset: SplitStream) -> Batches:
    return DataLoader(dataset, BATCH, num_workers=case.num_workers)


STREAM = frozenset({"iterable", "exact", "uneven"})
HARD = STREAM | {"any_workers"}
TWO = (2,)
"""Workers that are spawned import torch for seconds."""

MUTANTS = (
    Mutant(Loader(shuffled_same_seed, TRAINING), "SMP-01", "shuffle=True, no sampler, one seed"),
    Mutant(
        Loader(shuffled_rank_seed, TRAINING), "SMP-01", "shuffle=True, no sampler, seed per rank"
    ),
    Mutant(Loader(rank_zero_everywhere, TRAINING), "SMP-01", "rank=0 on all ranks"),
    Mutant(Loader(seed_is_rank, TRAINING), "SMP-01", "seed=rank"),
    Mutant(
        Loader(distributed, TRAINING, "epoch_is_rank", set_epoch=epoch_is_rank),
        "SMP-01",
        "set_epoch(rank)",
    ),
    Mutant(Loader(built_before_init, TRAINING), "SMP-01", "loader built before init"),
    Mutant(Sampler(contiguous_chunks, {"exact"}), "SMP-02", "contiguous chunks"),
    Mutant(Loader(uneven_files, {"exact"}), "SMP-02", "stream split by files"),
    Mutant(Loader(skips_a_batch, TRAINING), "SMP-02", "one rank skips a batch"),
    Mutant(Loader(padded_validation, {"pads", "evaluates"}), "SMP-03", "padded validation sampler"),
    Mutant(
        Loader(dropping_validation, {"drops", "evaluates"}), "SMP-03", "validation drops the tail"
    ),
    Mutant(
        Loader(distributed, TRAINING, "epoch_forgotten", set_epoch=no_epoch),
        "SMP-04",
        "set_epoch never called",
    ),
    Mutant(Loader(epoch_stuck_in_workers, TRAINING), "SMP-04", "epoch stuck in persistent workers"),
    Mutant(Loader(split_by_nothing, STREAM), "SMP-05", "stream not split"),
    Mutant(Loader(split_by_rank_only, STREAM), "SMP-05", "stream split by rank only"),
    Mutant(Loader(split_by_worker_only, STREAM), "SMP-05", "stream split by worker only"),
    Mutant(
        Loader(stream_not_rewound, HARD), "SMP-05", "stream not rewound by persistent workers", TWO
    ),
    Mutant(
        Loader(rank_in_global, HARD), "SMP-05", "rank in a global, lost in spawned workers", TWO
    ),
)

ALL = (1, 2, 3, 4)
"""Three ranks leave other remainders than two and four."""

BENIGN_VARIANTS = (
    BenignVariant(Loader(distributed, TRAINING), "DistributedSampler, padding declared", ALL),
    BenignVariant(
        Loader(distributed_dropping, {"drops", "shuffles"}),
        "DistributedSampler, drops declared",
        ALL,
    ),
    BenignVariant(Sampler(batch_sampler, TRAINING), "batches of indices from a sampler", ALL),
    BenignVariant(Sampler(contiguous_padded, {"pads"}), "contiguous chunks, filled up", ALL),
    BenignVariant(
        Loader(uneven_files, {"exact", "uneven"}, "uneven_files_joined"),
        "uneven shards under a loop that copes",
        ALL,
    ),
    BenignVariant(
        Loader(strided_validation, {"exact", "uneven", "evaluates"}),
        "unequal counts, each sample once",
        ALL,
    ),
    BenignVariant(Loader(epoch_shared_with_workers, TRAINING), "persistent workers, epoch shared"),
    BenignVariant(Loader(split_by_both, STREAM), "stream split by rank and worker", ALL),
    BenignVariant(Loader(split_under_any_workers, HARD), "split under workers of any kind", TWO),
    BenignVariant(Loader(split_by_both_padded, {"iterable", "pads"}), "the same, made even", ALL),
)
