"""What `make conformance` does not see of the metrics: precision and memory."""

from __future__ import annotations

import torch
from ddp_reference.resnet.metrics import SampleMean, StageMetrics


def test_the_sum_is_kept_in_double_precision() -> None:
    metric = SampleMean()
    metric.update(torch.full((3,), 2.0**25))
    metric.update(torch.ones(1))
    assert metric.compute().item() == (3 * 2**25 + 1) / 4


def test_stage_metrics_keep_no_graph_and_return_the_losses() -> None:
    metrics = StageMetrics()
    losses = metrics.update(torch.ones(3, 2, requires_grad=True), torch.tensor([0, 0, 0]))
    assert losses.shape == (3,)
    assert losses.requires_grad
    assert not metrics.loss.total.requires_grad
