"""Means over samples that are exact on any number of ranks.

A mean cannot be averaged over ranks: the ranks' counts differ, and Lightning's own
reduction of ``self.log(..., sync_dist=True)`` weights by integer counts that it
divides with a floor (Lightning 2.6.6, Lightning-AI/pytorch-lightning#21859). Here
sums and counts are pooled and divided once.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchmetrics import Metric


class SampleMean(Metric):
    """Mean of per-sample values over all samples of all ranks.

    The sum is float64 and the count int64, so that neither the order of the batches
    nor an ImageNet's worth of samples is seen in the result. A rank without samples
    takes part like any other. With no sample at all the mean is NaN.
    """

    is_differentiable = False
    full_state_update = False

    total: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        zero = torch.zeros((), dtype=torch.float64)
        self.add_state("total", default=zero, dist_reduce_fx="sum")
        self.add_state("count", default=torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, values: Tensor) -> None:
        """Add the values of one batch, any numeric dtype, of shape [batch]."""
        self.total += values.detach().to(torch.float64).sum()
        self.count += values.numel()

    def compute(self) -> Tensor:
        """The mean, float64, of shape []; equal to the last bit on all ranks."""
        return self.total / self.count


class StageMetrics(nn.Module):
    """Loss and accuracy of one stage (train, val or test)."""

    def __init__(self) -> None:
        super().__init__()
        self.loss = SampleMean()
        self.accuracy = SampleMean()

    def update(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Count a batch and return its losses [batch].

        ``scores`` is float [batch, classes], ``labels`` int64 [batch].
        """
        losses = functional.cross_entropy(scores, labels, reduction="none")
        self.loss.update(losses)
        self.accuracy.update(scores.argmax(dim=1) == labels)
        return losses
