"""MOD-09: normalisations over the samples of all ranks, or of those of each rank alone."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.nn.functional import all_reduce
from torch.optim import SGD

from ddp_conformance.framework.case import Case
from ddp_conformance.framework.mutants import BenignVariant, Mutant
from ddp_conformance.model.mutants.step_mutants import (
    FEATURES,
    RATE,
    Made,
    batch_of,
    share,
    summed_loss,
    wrapped,
)
from ddp_conformance.model.subjects import TrainStep


class Together(nn.BatchNorm1d):
    """Batch statistics from the counts, sums and sums of squares of all ranks."""

    def __init__(self) -> None:
        super().__init__(FEATURES)

    def forward(self, points: Tensor) -> Tensor:
        """Points of shape (samples, features), normalised."""
        if not self.training:
            return super().forward(points)
        count, mean, variance = self.statistics(points)
        mean_kept: Any = self.running_mean
        variance_kept: Any = self.running_var
        with torch.no_grad():
            mean_kept.lerp_(mean, 0.1)
            variance_kept.lerp_(variance * count / (count - 1), 0.1)
        return (points - mean) * (variance + self.eps).rsqrt() * self.weight + self.bias

    def statistics(self, points: Tensor) -> tuple[Any, Tensor, Tensor]:
        """How many samples, their mean and their variance."""
        count = torch.full_like(points[0], len(points))
        count, total, squares = over_ranks(count, points.sum(0), points.square().sum(0))
        mean = total / count
        return count, mean, squares / count - mean.square()


def over_ranks(*values: Tensor) -> Tensor:
    """Sums of tensors over ranks, through which gradients go back to all ranks."""
    sums = torch.stack(values)
    return all_reduce(sums) if dist.is_initialized() else sums  # type: ignore[no-untyped-call]


class EachAlone(Together):
    """``convert_sync_batchnorm`` forgotten."""

    def statistics(self, points: Tensor) -> tuple[Any, Tensor, Tensor]:
        return len(points), points.mean(0), points.var(0, correction=0)


class AveragesVariances(Together):
    """The mean of the ranks' variances, without how far apart their means are."""

    def statistics(self, points: Tensor) -> tuple[Any, Tensor, Tensor]:
        size = dist.get_world_size() if dist.is_initialized() else 1
        own = points.mean(0), points.var(0, correction=0)
        mean, variance = over_ranks(*own) / size
        return len(points) * size, mean, variance


class WeighsRanksAlike(Together):
    """Means of means: a rank's sample counts more where it has fewer of them."""

    def statistics(self, points: Tensor) -> tuple[Any, Tensor, Tensor]:
        size = dist.get_world_size() if dist.is_initialized() else 1
        mean, squares = over_ranks(points.mean(0), points.square().mean(0)) / size
        return len(points) * size, mean, squares - mean.square()


class CorrectsByItsOwn(Together):
    """The variance is made unbiased for the samples of one rank."""

    def statistics(self, points: Tensor) -> tuple[Any, Tensor, Tensor]:
        _, mean, variance = super().statistics(points)
        return len(points), mean, variance


def trained(case: Case, norm: nn.Module, device: torch.device | None = None) -> Made:
    """A model with that normalisation, each sample with the same weight."""
    torch.manual_seed(0)
    bare = nn.Sequential(nn.Linear(FEATURES, FEATURES), norm, nn.Linear(FEATURES, 1)).to(device)
    model = wrapped(case, bare)
    optimizer = SGD(model.parameters(), RATE)

    def step(number: int) -> None:
        optimizer.zero_grad()
        points, targets = (part.to(device) for part in batch_of(number, share(case)))
        (summed_loss(model, points, targets) * case.world_size / case.size).backward()
        optimizer.step()

    return model, step


# ------------------------------------------------------------------ right ones


def normalises_together(case: Case) -> Made:
    """Normalise by hand, for torch's SyncBatchNorm takes no tensor of a CPU."""
    return trained(case, Together())


def accumulates_together(case: Case) -> Made:
    """Two halves: the backward pass of each has collectives, of the normalisation."""
    model: Any = trained(case, Together())[0]
    optimizer = SGD(model.parameters(), RATE)

    def step(number: int) -> None:
        optimizer.zero_grad()
        points, targets = batch_of(number, share(case))
        for place, parts in enumerate(zip(points.chunk(2), targets.chunk(2), strict=True)):
            if hasattr(model, "require_backward_grad_sync"):
                model.require_backward_grad_sync = place == 1
            (summed_loss(model, *parts) * case.world_size / case.size).backward()
        optimizer.step()

    return model, step


def averages_equal_shares(case: Case) -> Made:
    """The mean of the ranks' means is that of all samples where ranks have equally many."""
    return trained(case, WeighsRanksAlike())


# ------------------------------------------------------------------ wrong ones


def normalises_alone(case: Case) -> Made:
    """Statistics of each rank's share."""
    return trained(case, EachAlone())


def averages_variances(case: Case) -> Made:
    """Average the variances, with samples of other means on each rank."""
    return trained(case, AveragesVariances())


def weighs_ranks_alike(case: Case) -> Made:
    """The same with one sample less on some."""
    return trained(case, WeighsRanksAlike())


def corrects_by_its_own(case: Case) -> Made:
    """n/(n-1) of a rank's n."""
    return trained(case, CorrectsByItsOwn())


SIZES = (2, 3)
SYNC = frozenset({"sync_batchnorm"})
UNEVEN = SYNC | {"uneven"}

MUTANTS = (
    Mutant(TrainStep(normalises_alone, SYNC), "MOD-09", "BatchNorm not converted", SIZES),
    Mutant(TrainStep(averages_variances, SYNC), "MOD-09", "variances averaged", SIZES),
    Mutant(TrainStep(weighs_ranks_alike, UNEVEN), "MOD-09", "unequal ranks, equal weights", SIZES),
    Mutant(TrainStep(corrects_by_its_own, SYNC), "MOD-09", "unbiased for one rank", SIZES),
)

BENIGN_VARIANTS = (
    BenignVariant(TrainStep(normalises_together, UNEVEN), "a SyncBatchNorm by hand", (1, 2, 3)),
    BenignVariant(TrainStep(averages_equal_shares, SYNC), "means of means, of equally many", SIZES),
    BenignVariant(
        TrainStep(accumulates_together, {"accumulates"}), "accumulates with SyncBatchNorm", SIZES
    ),
)
