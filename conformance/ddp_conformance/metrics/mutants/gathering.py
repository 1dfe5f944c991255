"""MET-04 and MET-06: metrics with a state that takes its dtype or shape from the samples."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from ddp_conformance.framework.mutants import BenignVariant, Mutant
from ddp_conformance.metrics.mutants.reductions import Mean
from ddp_conformance.metrics.subjects import Metric


class GathersValues(Mean):
    """Gathers all values, as ranks with equally many can."""

    def reset(self) -> None:
        super().reset()
        self.values: list[Tensor] = []

    def update(self, values: Tensor) -> None:
        self.values.append(values.double())

    def compute(self) -> Tensor:
        return torch.cat(self.gathered(torch.cat(self.values))).mean()

    def gathered(self, own: Tensor) -> list[Tensor]:
        """The values of all ranks."""
        parts = [torch.empty_like(own) for _ in range(self.case.world_size)]
        dist.all_gather(parts, own)
        return parts


class GathersPadded(GathersValues):
    """Correct: gathers all values, filled up to the most that a rank has."""

    def compute(self) -> Tensor:
        return torch.cat(self.gathered(torch.cat([self.nothing(), *self.values]))).mean()

    def nothing(self) -> Tensor:
        """The values of a rank that was never fed."""
        return torch.zeros(0, dtype=torch.float64)

    def gathered(self, own: Tensor) -> list[Tensor]:
        sizes = [torch.zeros((), dtype=torch.int64) for _ in range(self.case.world_size)]
        dist.all_gather(sizes, torch.tensor(len(own)))
        most = max(map(int, sizes))
        parts = super().gathered(torch.cat([own, own.new_zeros(most - len(own))]))
        return [part[: int(size)] for part, size in zip(parts, sizes, strict=True)]


class GathersUntyped(GathersPadded):
    """A list state that is empty has another dtype than one with samples."""

    def compute(self) -> Tensor:
        own = torch.cat(self.values) if self.values else torch.zeros(0)
        return torch.cat(self.gathered(own)).mean()


class ShapedByWhatItWasFed(Mean):
    """Sums of one number: [1] on a rank with samples and [] on one without, both one element."""

    def update(self, values: Tensor) -> None:
        self.total = self.total + values.double().sum(0, keepdim=True)
        self.count = self.count + torch.full((1,), float(len(values))).double()

    def compute(self) -> Tensor:
        total, count = self.total.clone(), self.count.clone()
        dist.all_reduce(total)
        dist.all_reduce(count)
        return total / count


MUTANTS = (
    Mutant(Metric(GathersUntyped), "MET-04", "empty list state of another dtype"),
    Mutant(Metric(GathersValues), "MET-06", "gathers tensors of different sizes"),
)

BENIGN_VARIANTS = (
    BenignVariant(Metric(GathersPadded), "values of any number gathered"),
    BenignVariant(Metric(ShapedByWhatItWasFed), "one number as [1] and as []"),
)
