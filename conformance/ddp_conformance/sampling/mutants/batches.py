"""SMP-01, SMP-02 and SMP-05: loaders that make batches full, and parts that need some samples."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle, islice
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from ddp_conformance.framework.case import Case, IndexedItem
from ddp_conformance.framework.mutants import BenignVariant, Mutant
from ddp_conformance.sampling.mutants.delivery_mutants import HARD, SplitStream, share
from ddp_conformance.sampling.subjects import Loader, Sampler

BATCH = 3
"""With it 8 samples for each rank, as many as most checks give, leave a short batch."""


def padded_then_dropped(case: Case) -> DataLoader[IndexedItem]:
    """Equal shares, and no short batch: what most training loaders are."""
    sampler = share(case, case.world_size, case.rank)
    return DataLoader(case.dataset, BATCH, sampler=sampler, drop_last=True)


def dropped_twice(case: Case) -> DataLoader[IndexedItem]:
    """The tail is dropped for equal shares, and then for full batches."""
    sampler = share(case, case.world_size, case.rank, drop_last=True)
    return DataLoader(case.dataset, BATCH, sampler=sampler, drop_last=True)


def drops_what_is_full(case: Case) -> list[dict[str, Any]]:
    """The last batch is left out, whether it is short or not."""
    sampler: Any = share(case, case.world_size, case.rank, shuffle=False)
    batches = [{"index": batch} for batch in BatchSampler(sampler, BATCH, drop_last=False)]
    return batches[:-1]


class BatchesInTurn:
    """Every ws-th batch, as Accelerate's ``BatchSamplerShard`` with even batches.

    What the last round lacks is filled up from the start, so that all its batches are full.
    """

    def __init__(self, case: Case, more: int = 0) -> None:
        self._case = case
        self._more = more

    def __iter__(self) -> Iterator[list[int]]:
        case = self._case
        step = case.world_size * BATCH
        padded = islice(cycle(range(case.size)), -(-case.size // step) * step + self._more * step)
        batches = BatchSampler(list(padded), BATCH, drop_last=False)
        return islice(batches, case.rank, None, case.world_size)


def batches_in_turn(case: Case) -> BatchesInTurn:
    """The last round is filled up from the start."""
    return BatchesInTurn(case)


def a_round_too_many(case: Case) -> BatchesInTurn:
    """Off by one: a round of batches of samples that all have come before."""
    return BatchesInTurn(case, more=1)


def whole_rounds(case: Case) -> list[list[int]]:
    """Every ws-th batch of the rounds in which all ranks have a full one."""
    batches = list(BatchSampler(SequentialSampler(case.dataset), BATCH, drop_last=True))
    rounds = len(batches) // case.world_size
    return batches[: rounds * case.world_size][case.rank :: case.world_size]


def short_round(case: Case) -> list[list[int]]:
    """Full batches alone, and not equally many of them for each rank."""
    batches = BatchSampler(SequentialSampler(case.dataset), BATCH, drop_last=True)
    return list(batches)[case.rank :: case.world_size]


def stream_in_full_batches(case: Case) -> DataLoader[IndexedItem]:
    """Each worker of each rank drops the end of its own share."""
    stream = SplitStream(case, by_rank=True, by_worker=True)
    return DataLoader(stream, BATCH, drop_last=True, **case.worker_options)


# ------------------------------------------------------------- a smallest size


def needs_one_for_each_rank(case: Case) -> range:
    """Each sample once, and at least one for each rank."""
    if case.size < case.world_size:
        raise ValueError(f"{case.size} samples are too few for {case.world_size} ranks")
    return range(case.rank, case.size, case.world_size)


def refuses_where_it_is_empty(case: Case) -> range:
    """Each rank looks at its own share, so that some go on and wait for those that raised."""
    own = range(case.rank, case.size, case.world_size)
    if not own:
        raise ValueError("there is nothing to do")
    return own


def gives_each_rank_something(case: Case) -> list[int]:
    """A rank without samples of its own is silently given the first one."""
    own = range(case.rank, case.size, case.world_size)
    return [*own] or [0]


PADS, DROPS = frozenset({"pads"}), frozenset({"drops"})
BOTH = PADS | DROPS
EACH_ONCE = frozenset({"exact", "uneven"})
STREAM = HARD - {"exact"} | DROPS

MUTANTS = (
    Mutant(
        Loader(drops_what_is_full, BOTH, batch_size=BATCH), "SMP-01", "last batch always left out"
    ),
    Mutant(
        Sampler(a_round_too_many, PADS, batch_size=BATCH), "SMP-01", "a round of batches too many"
    ),
    Mutant(Sampler(short_round, DROPS, batch_size=BATCH), "SMP-02", "full batches, unequally many"),
    Mutant(
        Sampler(refuses_where_it_is_empty, EACH_ONCE, min_size=1),
        "SMP-01",
        "empty ranks alone refuse",
    ),
    Mutant(
        Sampler(gives_each_rank_something, EACH_ONCE, min_size=1),
        "SMP-01",
        "repeats in place of refusing",
    ),
)

ALL = (1, 2, 3, 4)

BENIGN_VARIANTS = (
    BenignVariant(
        Loader(padded_then_dropped, BOTH | {"shuffles"}, batch_size=BATCH),
        "padded shares, full batches",
        ALL,
    ),
    BenignVariant(
        Loader(dropped_twice, DROPS | {"shuffles"}, batch_size=BATCH), "the tail dropped twice", ALL
    ),
    BenignVariant(
        Sampler(batches_in_turn, PADS, batch_size=BATCH), "the last round of batches filled up", ALL
    ),
    BenignVariant(
        Sampler(whole_rounds, DROPS, batch_size=BATCH), "the last round of batches dropped", ALL
    ),
    BenignVariant(
        Loader(stream_in_full_batches, STREAM, batch_size=BATCH),
        "full batches of each worker",
        (2,),
    ),
    BenignVariant(
        Sampler(needs_one_for_each_rank, EACH_ONCE, min_size=1),
        "all ranks refuse fewer samples than ranks",
        ALL,
    ),
)
