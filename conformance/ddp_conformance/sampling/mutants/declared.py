"""SMP-01 and SMP-05 where samples come more than once: draws, endless passes, copies, groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count, islice
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from ddp_conformance.framework.case import Case, IndexedItem, worker_number
from ddp_conformance.framework.mutants import BenignVariant, Mutant
from ddp_conformance.sampling.subjects import Loader, Sampler

COPIES = 3


class Shared:
    """Deals one order that all ranks share out, one after the other."""

    def __init__(self, case: Case) -> None:
        self.case, self.epoch = case, 0

    def set_epoch(self, epoch: int) -> None:
        """Go on to this epoch."""
        self.epoch = epoch

    def seed(self) -> int:
        """The same on all ranks."""
        return self.epoch

    def generator(self) -> torch.Generator:
        """Seeded anew for each epoch."""
        return torch.Generator().manual_seed(self.seed())

    def permutation(self, generator: torch.Generator) -> list[int]:
        """A permutation of all samples."""
        order: list[int] = torch.randperm(self.case.size, generator=generator).tolist()
        return order

    def order(self) -> list[int]:
        """The order of one epoch, as long for each rank."""
        order = self.permutation(self.generator())
        return self.evened(order)

    def evened(self, order: list[int]) -> list[int]:
        """The order filled up from its beginning, as often as it takes."""
        number = -len(order) % self.case.world_size
        return [*order, *(order * number)[:number]]

    def share(self, order: Sequence[int]) -> Sequence[int]:
        """Every world-size-th."""
        return order[self.case.rank :: self.case.world_size]

    def __iter__(self) -> Iterator[int]:
        return iter(self.share(self.order()))


class SameShare(Shared):
    """Every rank takes the beginning, as long as its share is."""

    def share(self, order: Sequence[int]) -> Sequence[int]:
        return order[: len(order) // self.case.world_size]


def drawn_in_all(number: int, world_size: int) -> int:
    """The draws in all, as many for each rank."""
    return number + -number % world_size


class Weighted(Shared):
    """A quarter of the samples comes four times as often; one draw for all ranks."""

    LENGTH = 1
    """The length of an epoch, in numbers of samples."""

    def order(self) -> list[int]:
        weights = torch.ones(self.case.size)
        weights[: self.case.size // 4 + 1] = 4
        number = drawn_in_all(self.LENGTH * self.case.size, self.case.world_size)
        order: list[int] = torch.multinomial(
            weights, number, replacement=True, generator=self.generator()
        ).tolist()
        return order


class WeightedByRank(Weighted):
    """A draw of each rank's own, which is as good."""

    def seed(self) -> int:
        return self.epoch * self.case.world_size + self.case.rank


class NearlyAlwaysZero(Weighted):
    """One sample is drawn nearly always, so that ranks' draws are almost equal by chance."""

    def order(self) -> list[int]:
        return [0 if index % 4 else index for index in super().order()]


class WeightedOnEach(SameShare, Weighted):
    """``WeightedRandomSampler`` with a seed for all: every rank draws the same."""


class WeightedWhole(WeightedByRank):
    """``WeightedRandomSampler(weights, len(dataset))`` on each rank: ws epochs in one."""

    def share(self, order: Sequence[int]) -> Sequence[int]:
        return order


class TwiceAsLong(Weighted):
    """An epoch of twice as many draws, as for balanced classes."""

    LENGTH = 2


class Endless(Shared):
    """One permutation after another, without end, dealt out in turn."""

    def stream(self) -> Iterator[int]:
        """The stream for all ranks."""
        generator = self.generator()
        for _ in count():
            yield from self.permutation(generator)

    def __iter__(self) -> Iterator[int]:
        return islice(self.stream(), self.case.rank, None, self.case.world_size)


class EndlessOnEach(Endless):
    """A sampler without the stride: every rank goes through all samples in the same order."""

    def __iter__(self) -> Iterator[int]:
        return self.stream()


class EndlessByRank(Endless):
    """The stride over permutations of each rank's own."""

    def seed(self) -> int:
        return self.case.rank


class EndsOnTheLast(Endless):
    """One rank comes to an end."""

    def __iter__(self) -> Iterator[int]:
        stream = super().__iter__()
        last = self.case.rank == self.case.world_size - 1
        return islice(stream, self.case.size // self.case.world_size) if last else stream


class EndlessShards(Endless):
    """A padded shard for each rank, in another order in each pass."""

    def __iter__(self) -> Iterator[int]:
        case = self.case
        shard = [
            i % case.size for i in range(case.rank, case.size + case.world_size, case.world_size)
        ]
        shard = shard[: -(-case.size // case.world_size)]
        generator = self.generator()
        for _ in count():
            yield from (shard[i] for i in torch.randperm(len(shard), generator=generator).tolist())


class SameOrderForEver(Endless):
    """The first permutation again and again."""

    def stream(self) -> Iterator[int]:
        for _ in count():
            yield from self.permutation(self.generator())


class EndlessBatches(Endless):
    """The ranks share out batches, not samples."""

    BATCH = 3

    def __iter__(self) -> Iterator[list[int]]:  # type: ignore[override]
        stream = self.stream()
        whole = (list(islice(stream, self.BATCH)) for _ in count())
        return islice(whole, self.case.rank, None, self.case.world_size)


class EndlessDraws(Endless):
    """Draws with replacement, without end."""

    def stream(self) -> Iterator[int]:
        generator = self.generator()
        for _ in count():
            yield int(torch.randint(self.case.size, (), generator=generator))


class EndlessDrawsOnEach(EndlessDraws):
    """The same on every rank."""

    def __iter__(self) -> Iterator[int]:
        return self.stream()


class Repeated(Shared):
    """Repeated augmentation: the copies of a sample go to different ranks."""

    def order(self) -> list[int]:
        return self.evened([i for i in self.permutation(self.generator()) for _ in range(COPIES)])


class RepeatedOnEach(SameShare, Repeated):
    """Every rank takes the beginning."""


class RepeatedOnce(Repeated):
    """As DeiT's ``RASampler``: an epoch is as long as without copies, and leaves samples out."""

    def share(self, order: Sequence[int]) -> Sequence[int]:
        return super().share(order)[: self.case.size // self.case.world_size]


def drawn_once(size: int) -> int:
    """The deliveries of :class:`RepeatedOnce`, and fewer than one for each rank."""
    return size


class ByFormat(Shared):
    """Images of two formats, each padded to full batches on all ranks, as mmdetection does."""

    BATCH = 2

    def order(self) -> list[int]:
        order = self.permutation(self.generator())
        return [i for wide in (0, 1) for i in self.padded([i for i in order if i % 2 == wide])]

    def padded(self, group: list[int]) -> list[int]:
        """So that each rank gets full batches of it."""
        number = -len(group) % (self.BATCH * self.case.world_size)
        return [*group, *(group * number)[:number]]


class ByFormatOnEach(SameShare, ByFormat):
    """Every rank takes the same."""


class OneGroupTwice(ByFormat):
    """Pads one group for the other, too."""

    def order(self) -> list[int]:
        order = super().order()
        odd = [i for i in order if i % 2]
        return [*order, *odd[: self.BATCH * self.case.world_size]]


def formats(size: int) -> list[int]:
    """The format of each sample."""
    return [index % 2 for index in range(size)]


class ByTokens:
    """Batches of as many sentences of like length as fit; some come twice, so that each rank gets
    equally many, as in fairseq."""

    BUDGET = 12
    """Tokens of a batch, with those that make its sentences equally long. A sentence has at least
    one, so that this is also the largest number of sentences."""

    def __init__(self, case: Case) -> None:
        self.case, self.epoch = case, 0

    def set_epoch(self, epoch: int) -> None:
        """Go on to this epoch."""
        self.epoch = epoch

    def batches(self) -> list[list[int]]:
        """The batches of one epoch, in a random order."""
        generator = torch.Generator().manual_seed(self.epoch)
        batches: list[list[int]] = [[]]
        order: list[int] = torch.randperm(self.case.size, generator=generator).tolist()
        for index in sorted(order, key=tokens):
            if (len(batches[-1]) + 1) * tokens(index) > self.BUDGET:
                batches.append([])
            batches[-1].append(index)
        return [batches[place] for place in torch.randperm(len(batches), generator=generator)]

    def share(self, batches: list[list[int]]) -> list[list[int]]:
        """The share of this rank."""
        number = -len(batches) % self.case.world_size
        padded = [*batches, *(batches * number)[:number]]
        return padded[self.case.rank :: self.case.world_size]

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.share(self.batches()))


class ByTokensWithoutTheRest(ByTokens):
    """Leaves out the batches that are not one for each rank."""

    def share(self, batches: list[list[int]]) -> list[list[int]]:
        number = len(batches) // self.case.world_size
        own = slice(self.case.rank, number * self.case.world_size, self.case.world_size)
        return batches[own]


class ByTokensOnEach(ByTokens):
    """Every rank takes the first ones."""

    def share(self, batches: list[list[int]]) -> list[list[int]]:
        return batches[: -(-len(batches) // self.case.world_size)]


def tokens(index: int) -> int:
    """The number of tokens in a sentence."""
    return 1 + 7 * index % 5


class Resampled(IterableDataset[IndexedItem]):
    """Shards that are drawn with replacement, without end, as with webdataset's ``resampled``."""

    def __init__(self, case: Case) -> None:
        self.case = case

    def seed(self, worker: int) -> int:
        """The seed of this worker."""
        return 100 * self.case.rank + worker

    def __iter__(self) -> Iterator[IndexedItem]:
        worker = get_worker_info()
        generator = torch.Generator().manual_seed(self.seed(worker.id if worker else 0))
        for _ in count():
            index = int(torch.randint(self.case.size, (), generator=generator))
            yield {"index": index, "worker": worker_number()}


class ResampledByRank(Resampled):
    """Workers of one rank draw the same."""

    def seed(self, worker: int) -> int:
        return self.case.rank


def same_order_in_batches(case: Case) -> DataLoader[IndexedItem]:
    """Passes do not begin with a batch."""
    sampler: Any = SameOrderForEver(case)
    return DataLoader(case.dataset, 3, sampler=sampler)


def resampled(case: Case) -> DataLoader[IndexedItem]:
    """Another draw for each rank and worker."""
    return DataLoader(Resampled(case), 2, num_workers=case.num_workers)


def resampled_by_rank(case: Case) -> DataLoader[IndexedItem]:
    """A seed without the worker in it."""
    return DataLoader(ResampledByRank(case), 2, num_workers=case.num_workers)


DRAWS = frozenset({"replacement", "pads", "shuffles"})
ENDLESS = frozenset({"endless", "shuffles"})
PADS = frozenset({"pads", "shuffles"})
STREAM = frozenset({"iterable", "endless", "replacement"})
EVEN = (2, 4)
"""As many ranks as copies get one copy each, the same samples."""
TWO = (2,)
ALL = (1, 2, 3, 4)

MUTANTS = (
    Mutant(Sampler(WeightedOnEach, DRAWS), "SMP-01", "every rank makes the same weighted draw"),
    Mutant(Sampler(WeightedWhole, DRAWS), "SMP-01", "every rank draws for a whole epoch"),
    Mutant(Sampler(EndlessOnEach, ENDLESS), "SMP-01", "every rank goes through all, endlessly"),
    Mutant(Sampler(EndlessByRank, ENDLESS), "SMP-01", "endless, permutations of each rank's own"),
    Mutant(Sampler(EndsOnTheLast, ENDLESS), "SMP-01", "endless but on one rank"),
    Mutant(Sampler(SameOrderForEver, ENDLESS), "SMP-04", "endless, in one order"),
    Mutant(
        Loader(same_order_in_batches, ENDLESS), "SMP-04", "endless, in one order, in batches of 3"
    ),
    Mutant(
        Sampler(EndlessDrawsOnEach, ENDLESS | {"replacement"}), "SMP-01", "the same endless draws"
    ),
    Mutant(Sampler(RepeatedOnEach, PADS, copies=COPIES), "SMP-01", "the same copies", EVEN),
    Mutant(
        Sampler(ByFormatOnEach, PADS, groups=formats, batch_size=ByFormat.BATCH),
        "SMP-01",
        "the same share of groups on every rank",
    ),
    Mutant(
        Sampler(OneGroupTwice, PADS, groups=formats, batch_size=ByFormat.BATCH),
        "SMP-01",
        "pads one group beyond its batches",
    ),
    Mutant(
        Sampler(ByTokensOnEach, PADS | {"dynamic_batches"}, batch_size=ByTokens.BUDGET),
        "SMP-01",
        "the same dynamic batches on every rank",
    ),
    Mutant(Loader(resampled_by_rank, STREAM), "SMP-05", "workers resample the same shards", TWO),
)

BENIGN_VARIANTS = (
    BenignVariant(Sampler(Weighted, DRAWS), "a weighted draw that ranks share", ALL),
    BenignVariant(Sampler(WeightedByRank, DRAWS), "a weighted draw of each rank's own", ALL),
    BenignVariant(Sampler(NearlyAlwaysZero, DRAWS), "draws that are almost equal by chance", ALL),
    BenignVariant(
        Sampler(TwiceAsLong, DRAWS, draws=lambda size: TwiceAsLong.LENGTH * size),
        "an epoch of twice as many draws",
        ALL,
    ),
    BenignVariant(Sampler(Endless, ENDLESS), "endless permutations, dealt out in turn", ALL),
    BenignVariant(Sampler(EndlessBatches, ENDLESS), "endless passes, dealt out by batches", ALL),
    BenignVariant(
        Sampler(EndlessShards, ENDLESS | {"pads"}), "endless passes over padded shards", ALL
    ),
    BenignVariant(Sampler(EndlessDraws, ENDLESS | {"replacement"}), "endless draws", ALL),
    BenignVariant(Sampler(Repeated, PADS, copies=COPIES), "repeated augmentation", ALL),
    BenignVariant(
        Sampler(RepeatedOnce, frozenset({"drops", "shuffles"}), copies=COPIES, draws=drawn_once),
        "repeated augmentation in an epoch of usual length",
        ALL,
    ),
    BenignVariant(
        Sampler(ByFormat, PADS, groups=formats, batch_size=ByFormat.BATCH),
        "padding for each group of images",
        ALL,
    ),
    BenignVariant(
        Sampler(ByTokens, PADS | {"dynamic_batches"}, batch_size=ByTokens.BUDGET),
        "batches of a budget of tokens, some of them twice",
        ALL,
    ),
    BenignVariant(
        Sampler(
            ByTokensWithoutTheRest,
            frozenset({"drops", "shuffles", "dynamic_batches"}),
            batch_size=ByTokens.BUDGET,
        ),
        "batches of a budget of tokens, some of them left out",
        ALL,
    ),
    BenignVariant(Loader(resampled, STREAM), "shards drawn anew by each worker", TWO),
)
