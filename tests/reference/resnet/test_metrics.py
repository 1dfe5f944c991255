"""Means over samples: exact, idempotent, and poolable from unequal ranks."""

from __future__ import annotations

import math

import pytest
import torch
from ddp_reference.resnet.metrics import SampleMean, StageMetrics


def pooled(ranks: list[SampleMean]) -> float:
    """What the metric computes after its states were reduced as it declares."""
    whole = SampleMean()
    for name, reduce in whole._reductions.items():
        assert callable(reduce)
        setattr(whole, name, reduce(torch.stack([getattr(rank, name) for rank in ranks])))
    whole._update_count = 1
    return whole.compute().item()


def mean_of(values: list[float]) -> SampleMean:
    metric = SampleMean()
    for start in range(0, max(1, len(values)), 2):
        metric.update(torch.tensor(values[start : start + 2]))
    return metric


def test_uneven_ranks_and_batches_count_by_sample() -> None:
    assert pooled([mean_of([1.0, 2.0, 3.0]), mean_of([10.0])]) == 4.0


def test_a_rank_without_samples_changes_nothing() -> None:
    assert pooled([mean_of([1.0, 2.0]), mean_of([])]) == 1.5


def test_no_samples_at_all_give_nan() -> None:
    assert math.isnan(pooled([mean_of([]), mean_of([])]))


def test_the_sum_is_kept_in_double_precision() -> None:
    metric = SampleMean()
    metric.update(torch.full((3,), 2.0**25))
    metric.update(torch.ones(1))
    assert metric.compute().item() == (3 * 2**25 + 1) / 4


def test_compute_is_idempotent_and_reset_forgets() -> None:
    metric = mean_of([1.0, 5.0])
    assert metric.compute() == metric.compute() == 3.0
    metric.update(torch.tensor([9.0]))
    assert metric.compute() == 5.0
    metric.reset()
    metric.update(torch.tensor([7.0]))
    assert metric.compute() == 7.0


def test_stage_metrics_keep_no_graph_and_return_the_losses() -> None:
    metrics = StageMetrics()
    scores = torch.tensor([[4.0, 0.0], [0.0, 4.0], [4.0, 0.0]], requires_grad=True)
    losses = metrics.update(scores, torch.tensor([0, 0, 0]))
    assert losses.shape == (3,)
    assert losses.requires_grad
    assert not metrics.loss.total.requires_grad
    assert metrics.accuracy.compute().item() == pytest.approx(2 / 3)
    assert metrics.loss.compute().item() == pytest.approx(losses.mean().item())


def test_an_empty_batch_is_counted_as_nothing() -> None:
    metrics = StageMetrics()
    assert metrics.update(torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64)).shape == (0,)
    assert metrics.loss.count == 0
