"""MET-03: evaluations that report repeated samples, and some that do not."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from ddp_conformance.framework.case import Case, IndexedItem
from ddp_conformance.framework.mutants import BenignVariant, Mutant
from ddp_conformance.metrics.mutants.reductions import Mean
from ddp_conformance.metrics.subjects import Evaluation, sample_value
from ddp_conformance.sampling.mutants.delivery_mutants import BATCH, share

Pass: TypeAlias = Callable[[], Any]


def loader(case: Case, sampler: Iterable[int]) -> DataLoader[IndexedItem]:
    """Batches of the samples that the sampler names."""
    return DataLoader(case.dataset, BATCH, sampler=sampler)


def padded_share(case: Case, drop_last: bool = False) -> list[int]:
    """This rank's indices as torch's own sampler deals them out."""
    sampler: Any = share(case, case.world_size, case.rank, shuffle=False, drop_last=drop_last)
    return list(sampler)


def mean_over(case: Case, sampler: Iterable[int]) -> Pass:
    """A pass that reports the mean over what all ranks' samplers deliver."""

    def evaluate() -> dict[str, Any]:
        mean = Mean(case)
        for batch in loader(case, sampler):
            mean.update(torch.tensor([sample_value(int(index)) for index in batch["index"]]))
        return {"val_loss": mean.compute()}

    return evaluate


def padded(case: Case) -> Pass:
    """The sampler that a framework puts in by itself: it repeats the first samples."""
    return mean_over(case, padded_share(case))


def tail_dropped(case: Case) -> Pass:
    """Padding avoided by leaving samples out, down to none."""
    return mean_over(case, padded_share(case, drop_last=True))


def in_turn(case: Case) -> Pass:
    """Every world-size-th sample and nothing more: ranks may differ by one, or have none."""
    return mean_over(case, range(case.rank, case.size, case.world_size))


def repeats_left_out(case: Case) -> Pass:
    """Padded for equal numbers of batches, and the repeated samples not counted."""
    numbered = enumerate(padded_share(case))
    own = [i for number, i in numbered if number * case.world_size + case.rank < case.size]
    return mean_over(case, own)


def gathered_and_cut(case: Case) -> Pass:
    """All ranks' padded values gathered, put in order, and cut at the end of the data set."""

    def evaluate() -> float:
        own = [sample_value(index) for index in padded_share(case)]
        by_rank: list[list[float]] = [[] for _ in range(case.world_size)]
        dist.all_gather_object(by_rank, own)
        values = [value for column in zip(*by_rank, strict=True) for value in column]
        return math.fsum(values[: case.size]) / case.size

    return evaluate


def closed_after_the_pass(case: Case) -> Pass:
    """A program that ends its process group when it has the mean over all samples."""
    evaluate = in_turn(case)

    def evaluate_and_close() -> Any:
        reported = evaluate()
        dist.destroy_process_group()
        return reported

    return evaluate_and_close


def closed_with_own_means(case: Case) -> Pass:
    """The same with the mean of the ranks' means, which is right where all have as many samples."""

    def evaluate_and_close() -> float:
        own = [sample_value(index) for index in range(case.rank, case.size, case.world_size)]
        mean = torch.tensor(math.fsum(own) / max(1, len(own)))
        dist.all_reduce(mean)
        dist.destroy_process_group()
        return float(mean) / case.world_size

    return evaluate_and_close


MUTANTS = (
    Mutant(
        Evaluation(closed_with_own_means), "MET-01", "a mean of means, then the group ended", (2,)
    ),
    Mutant(Evaluation(padded), "MET-03", "padded validation sampler"),
    Mutant(Evaluation(tail_dropped), "MET-03", "validation drops the tail"),
)

BENIGN_VARIANTS = (
    BenignVariant(Evaluation(in_turn), "unequal numbers of batches, one reduction at the end"),
    BenignVariant(Evaluation(repeats_left_out), "padded, repeats not counted"),
    BenignVariant(Evaluation(gathered_and_cut), "padded, cut after gathering"),
    BenignVariant(Evaluation(closed_after_the_pass), "a pass that ends its group", (2,)),
)
