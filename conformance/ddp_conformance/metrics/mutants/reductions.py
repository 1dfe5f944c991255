"""MET-01, MET-02, MET-04 to MET-06: metrics with the defects that reductions have in the wild."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed._functional_collectives import all_reduce

from ddp_conformance.framework.case import Case
from ddp_conformance.framework.mutants import BenignVariant, Mutant
from ddp_conformance.metrics.subjects import Metric, sample_value

# ------------------------------------------------------------- MET-01: means


class Mean:
    """Mean of values, from a sum and a count that the ranks pool when it is computed."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.reset()

    def reset(self) -> None:
        """Begin an epoch."""
        self.total = torch.zeros((), dtype=torch.float64)
        self.count = torch.zeros((), dtype=torch.float64)

    def update(self, values: Tensor) -> None:
        """Add the values of one batch: float [batch]."""
        self.total += values.double().sum()
        self.count += len(values)

    def compute(self) -> Tensor:
        """The mean, float64 []."""
        total, count = pooled(self.total, self.count).unbind()
        return total / count


def pooled(*parts: Tensor) -> Tensor:
    """The sums of each of ``parts`` [] over the ranks: float64 [parts]."""
    sums = torch.stack(parts)
    dist.all_reduce(sums)
    return sums


class RankMean(Mean):
    """Each rank reports its own samples: ``self.log`` without a reduction."""

    def compute(self) -> Tensor:
        return self.total / self.count


class MeanOfMeans(Mean):
    """The ranks' means averaged, whatever the numbers of samples."""

    def compute(self) -> Tensor:
        return pooled(self.total / self.count)[0] / self.case.world_size


class FlooredWeights(Mean):
    """Value and weight averaged over ranks before they are divided, the weight as an integer."""

    def compute(self) -> Tensor:
        value = pooled(self.total)[0] / self.case.world_size
        weight = self.count.long()
        dist.all_reduce(weight)
        return value / weight.div(self.case.world_size, rounding_mode="floor")


class NodeWeighted(Mean):
    """Batches of graphs weighted by their nodes, as the batch's size is the number of nodes."""

    def update(self, values: Tensor) -> None:
        nodes = (1 + values.abs().round()).double().sum()
        self.total += values.double().mean() * nodes
        self.count += nodes


class CountsInInt8(Mean):
    """Labels are int8, and so is their count: 127 is followed by -128."""

    def reset(self) -> None:
        super().reset()
        self.count = torch.zeros((), dtype=torch.int8)

    def compute(self) -> Tensor:
        total, count = pooled(self.total, self.count.double()).unbind()
        return total / count


class BatchMean(Mean):
    """Every batch has the same weight, the short last one too."""

    def update(self, values: Tensor) -> None:
        self.total += values.double().mean()
        self.count += 1


class ReducedTwice(Mean):
    """Reduced by the metric, and once more when it is logged."""

    def compute(self) -> Tensor:
        mean = super().compute()
        dist.all_reduce(mean)
        return mean


class OnlyOnRankZero(Mean):
    """Reduced to the rank that prints it; the others go on with their own."""

    def compute(self) -> Tensor:
        sums = torch.stack([self.total, self.count])
        dist.reduce(sums, dst=0)
        return sums[0] / sums[1] if self.case.rank == 0 else self.total / self.count


class GatheredMean(Mean):
    """Sums and counts gathered as objects, and added up on every rank."""

    def compute(self) -> Tensor:
        parts: list[tuple[float, float]] = [(0.0, 0.0)] * self.case.world_size
        dist.all_gather_object(parts, (self.total.item(), self.count.item()))
        total, count = (sum(column) for column in zip(*parts, strict=True))
        return torch.tensor(total / count, dtype=torch.float64)


class OwnFirst(Mean):
    """Gathers all values, this rank's first: each rank adds them up in an order of its own."""

    def reset(self) -> None:
        self.values: list[float] = []

    def update(self, values: Tensor) -> None:
        self.values += values.tolist()

    def compute(self) -> Tensor:
        parts: list[list[float]] = [[]] * self.case.world_size
        dist.all_gather_object(parts, self.values)
        parts = parts[self.case.rank :] + parts[: self.case.rank]
        values = [value for part in parts for value in part]
        return torch.tensor(self.sum(values) / len(values), dtype=torch.float64)

    def sum(self, values: list[float]) -> float:
        """One after the other, each time rounded."""
        return sum(values)


class OwnFirstExactly(OwnFirst):
    """The same, and no order matters to the sum."""

    def sum(self, values: list[float]) -> float:
        return math.fsum(values)


def torchmetrics_mean(case: Case) -> object:
    """``torchmetrics.MeanMetric``, which pools a weighted sum and the weights."""
    from torchmetrics import MeanMetric

    return MeanMetric()


# ------------------------------------------------------------- MET-02: not means


def mean_square(indices: Sequence[int]) -> float:
    """Mean of the squared values."""
    return sum(sample_value(index) ** 2 for index in indices) / len(indices)


def root_mean_square(indices: Sequence[int]) -> float:
    """Root of the mean of the squared values."""
    return float(mean_square(indices) ** 0.5)


class RootMeanSquare(Mean):
    """Root of the mean square of pooled sums."""

    def update(self, values: Tensor) -> None:
        super().update(values.square())

    def compute(self) -> Tensor:
        return super().compute().sqrt()


class MeanOfRoots(RootMeanSquare):
    """The ranks' roots averaged; with equal numbers of samples still wrong."""

    def compute(self) -> Tensor:
        roots = (self.total / self.count).sqrt()
        return pooled(roots * self.count)[0] / pooled(self.count)[0]


def label(index: int) -> tuple[bool, bool]:
    """Prediction and target of a sample: irregular, and different from rank to rank."""
    return index % 3 != 1, index == 0 or index * index % 7 > 2


def label_batch(indices: Sequence[int]) -> tuple[Tensor, ...]:
    """Predictions and targets: bool [batch] each."""
    predicted, target = zip(*(label(index) for index in indices), strict=True)
    return torch.tensor(predicted), torch.tensor(target)


def f1_of(indices: Sequence[int]) -> float:
    """F1 of the samples."""
    labels = [label(index) for index in indices]
    hits = sum(predicted and target for predicted, target in labels)
    return 2.0 * hits / sum(predicted + target for predicted, target in labels)


class F1(Mean):
    """F1 from pooled counts: ``total`` has twice the hits, ``count`` all positives."""

    def update(self, predicted: Tensor, target: Tensor) -> None:  # type: ignore[override]
        self.total += 2 * (predicted & target).sum()
        self.count += predicted.sum() + target.sum()


class MeanOfF1(F1):
    """The ranks' F1 averaged."""

    def compute(self) -> Tensor:
        return pooled(self.total / self.count.clamp_min(1))[0] / self.case.world_size


def averaged_states(case: Case) -> object:
    """``dist_reduce_fx="mean"`` for sums: right for the mean, not for the variance."""
    from torchmetrics import Metric as TorchMetric

    class Variance(TorchMetric):
        total: Tensor
        squares: Tensor
        count: Tensor

        def __init__(self) -> None:
            super().__init__()
            for state in ("total", "squares"):
                self.add_state(state, torch.zeros((), dtype=torch.float64), "mean")
            self.add_state("count", torch.zeros((), dtype=torch.float64), "sum")

        def update(self, values: Tensor) -> None:
            self.total += values.double().sum()
            self.squares += values.double().square().sum()
            self.count += len(values)

        def compute(self) -> Tensor:
            return self.squares / self.count - (self.total / self.count) ** 2

    return Variance()


def variance_of(indices: Sequence[int]) -> float:
    """Variance of the values, with the number of samples as divisor."""
    mean = sum(map(sample_value, indices)) / len(indices)
    return mean_square(indices) - mean**2


def torchmetrics_f1(case: Case) -> object:
    """``torchmetrics`` from pooled counts."""
    from torchmetrics.classification import BinaryF1Score

    return BinaryF1Score()


# ------------------------------------------------------------- MET-04: ranks without samples


class SkipsWhenEmpty(Mean):
    """Leaves the reduction out on a rank that has nothing to add."""

    def compute(self) -> Tensor:
        return super().compute() if self.count else self.total


class DividesFirst(Mean):
    """Weighs the rank's mean with its count: 0 times 0/0 is not a number, for all."""

    def compute(self) -> Tensor:
        mean = self.total / self.count
        total, count = pooled(mean * self.count, self.count).unbind()
        return total / count


class CountsAtLeastOne(Mean):
    """Never divides by zero: a rank without samples counts as one sample with the value 0."""

    def compute(self) -> Tensor:
        total, count = pooled(self.total, self.count.clamp_min(1)).unbind()
        return total / count


class Largest(Mean):
    """The largest value; a rank without samples has none."""

    nothing = -math.inf

    def reset(self) -> None:
        self.values: list[float] = []

    def update(self, values: Tensor) -> None:
        self.values += values.tolist()

    def compute(self) -> Tensor:
        largest = torch.tensor(max(self.values, default=self.nothing), dtype=torch.float64)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        return largest


class LargestOrZero(Largest):
    """The largest value; 0 on a rank without samples, which is larger than a negative one."""

    nothing = 0.0


def largest_value(indices: Sequence[int]) -> float:
    """The largest of the samples' values."""
    return max(map(sample_value, indices))


class RaisesWhenEmpty(Mean):
    """Raises on a rank without samples."""

    def compute(self) -> Tensor:
        if not self.count:
            raise ValueError("no samples to compute the mean of")
        return super().compute()


# ------------------------------------------------------------- MET-05: computing twice


class ReducesItself(Mean):
    """Reduces its state in place: fed again, it counts the first samples on every rank."""

    def compute(self) -> Tensor:
        dist.all_reduce(self.total)
        dist.all_reduce(self.count)
        return self.total / self.count


class ForgetsToReset(Mean):
    """Goes on from the last epoch."""

    def reset(self) -> None:
        if not hasattr(self, "total"):
            super().reset()


class ClearsWhenComputed(Mean):
    """``compute`` resets the state: a progress bar that calls it is enough."""

    def compute(self) -> Tensor:
        mean = super().compute()
        self.reset()
        return mean


class SharesItsState(Mean):
    """Sums that belong to the class: a new metric of the next epoch goes on with them."""

    sums = torch.zeros(2, dtype=torch.float64)

    def reset(self) -> None:
        self.total, self.count = self.sums


# ------------------------------------------------------------- MET-06: the same calls


class OnRankZeroAlone(Mean):
    """``if is_global_zero: log(..., sync_dist=True)``: the other ranks never call it."""

    def compute(self) -> Tensor:
        return super().compute() if self.case.rank == 0 else self.total / self.count


class ReducesEveryBatch(Mean):
    """A reduction for each batch, of which the ranks have different numbers."""

    def update(self, values: Tensor) -> None:
        sums = pooled(values.double().sum(), torch.tensor(float(len(values))).double())
        self.total += sums[0]
        self.count += sums[1]

    def compute(self) -> Tensor:
        return self.total / self.count


class OneMoreOnRankZero(Mean):
    """Rank 0 reduces something of its own, which pairs with the others' metric in silence."""

    def compute(self) -> Tensor:
        if self.case.rank == 0:
            pooled(torch.tensor(1.0).double(), torch.tensor(0.01).double())
        return super().compute()


class MaximumOnRankZero(Mean):
    """Rank 0 takes the greatest sum and count, and the others sums."""

    def compute(self) -> Tensor:
        both = torch.stack([self.total, self.count])
        dist.all_reduce(both, dist.ReduceOp.MAX if self.case.rank == 0 else dist.ReduceOp.SUM)
        return both[0] / both[1]


class FunctionalMean(Mean):
    """Pooled by a functional collective, which C++ issues."""

    def compute(self) -> Tensor:
        group: Any = dist.group.WORLD
        sums = torch.stack([self.total, self.count])
        both: Tensor = all_reduce(sums, self.operation, group)
        return both[0] / both[1]

    @property
    def operation(self) -> str:
        """The operation of the reduction on all ranks."""
        return "sum"


class FunctionalMaximumOnRankZero(FunctionalMean):
    """The greatest sum and count on rank 0, and sums on the others."""

    @property
    def operation(self) -> str:
        return "max" if self.case.rank == 0 else "sum"


class GroupOnRankZero(Mean):
    """A group for what rank 0 does with others later, made where only rank 0 comes by."""

    def compute(self) -> Tensor:
        if self.case.rank == 0:
            dist.destroy_process_group(dist.new_group([0]))
        return super().compute()


NONLINEAR = frozenset({"nonlinear"})

MUTANTS = (
    Mutant(Metric(RankMean), "MET-01", "no reduction"),
    Mutant(Metric(MeanOfMeans), "MET-01", "mean of the ranks' means"),
    Mutant(Metric(FlooredWeights), "MET-01", "weights averaged as integers"),
    Mutant(Metric(NodeWeighted), "MET-01", "batches weighted by nodes"),
    Mutant(Metric(BatchMean), "MET-01", "mean of the batches' means"),
    Mutant(Metric(CountsInInt8), "MET-01", "a count in int8"),
    Mutant(Metric(ReducedTwice), "MET-01", "reduced twice"),
    Mutant(Metric(OnlyOnRankZero), "MET-01", "reduced to rank 0 only"),
    Mutant(Metric(OwnFirst), "MET-01", "summed in each rank's own order"),
    Mutant(
        Metric(MeanOfRoots, NONLINEAR, reference=root_mean_square),
        "MET-02",
        "mean of ranks' RMS",
    ),
    Mutant(Metric(MeanOfF1, NONLINEAR, batch=label_batch, reference=f1_of), "MET-02", "mean of F1"),
    Mutant(
        Metric(averaged_states, NONLINEAR, reference=variance_of),
        "MET-02",
        "sums averaged over ranks",
    ),
    Mutant(Metric(SkipsWhenEmpty), "MET-04", "empty rank leaves out the reduction"),
    Mutant(Metric(DividesFirst), "MET-04", "empty rank's mean is not a number"),
    Mutant(Metric(CountsAtLeastOne), "MET-04", "empty rank counts as a sample"),
    Mutant(Metric(RaisesWhenEmpty), "MET-04", "empty rank raises"),
    Mutant(
        Metric(LargestOrZero, NONLINEAR, reference=largest_value),
        "MET-04",
        "empty rank's maximum is 0",
    ),
    Mutant(Metric(ReducesItself), "MET-05", "state reduced in place"),
    Mutant(Metric(ForgetsToReset), "MET-05", "missing reset"),
    Mutant(Metric(ClearsWhenComputed), "MET-05", "reset by compute"),
    Mutant(Metric(SharesItsState), "MET-05", "state shared with the next metric"),
    Mutant(Metric(OnRankZeroAlone), "MET-06", "computed on rank 0 alone"),
    Mutant(Metric(ReducesEveryBatch), "MET-06", "a reduction for each batch"),
    Mutant(Metric(OneMoreOnRankZero), "MET-06", "one more reduction on rank 0"),
    Mutant(Metric(MaximumOnRankZero), "MET-06", "maximum on rank 0, sum on others"),
    Mutant(
        Metric(FunctionalMaximumOnRankZero),
        "MET-06",
        "maximum on rank 0, sum on others, by functional collectives",
    ),
    Mutant(Metric(GroupOnRankZero), "MET-06", "new_group on rank 0 alone"),
)

BENIGN_VARIANTS = (
    BenignVariant(Metric(Mean), "sums and counts pooled, divided once"),
    BenignVariant(Metric(FunctionalMean), "the same by a functional collective"),
    BenignVariant(Metric(GatheredMean), "the same by objects"),
    BenignVariant(
        Metric(OwnFirstExactly), "values gathered in each rank's own order, and summed exactly"
    ),
    BenignVariant(Metric(torchmetrics_mean), "weights pooled by torchmetrics"),
    BenignVariant(
        Metric(RootMeanSquare, NONLINEAR, reference=root_mean_square), "root after the reduction"
    ),
    BenignVariant(
        Metric(Largest, NONLINEAR, reference=largest_value), "maximum, of nothing on empty ranks"
    ),
    BenignVariant(Metric(F1, NONLINEAR, batch=label_batch, reference=f1_of), "F1 of pooled counts"),
    BenignVariant(
        Metric(torchmetrics_f1, NONLINEAR, batch=label_batch, reference=f1_of),
        "F1 of states that torchmetrics pools",
    ),
)
