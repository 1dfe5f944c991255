"""Losses of pytorch-metric-learning over the embeddings of all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
import torch
from ddp_conformance import Case, Subject, TrainStep
from torch import Tensor, nn

from conformance.ecosystem.frame.models import points_of, share, wrapped
from conformance.ecosystem.frame.parts import Breach, Part, parametrize_with_parts

if TYPE_CHECKING:
    from ddp_conformance.frontend.pytest_frontend import BoundCheck

losses = pytest.importorskip("pytorch_metric_learning.losses")
distributed = pytest.importorskip("pytorch_metric_learning.utils.distributed")


def embedding(case: Case, efficient: bool) -> tuple[nn.Module, Callable[[int], None]]:
    """Pulls the embeddings of one label together."""
    model = wrapped(case, nn.Linear(3, 2))
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    loss = losses.ContrastiveLoss()
    if case.world_size > 1:
        loss = distributed.DistributedLossWrapper(loss, efficient=efficient)

    def step(number: int) -> None:
        optimizer.zero_grad()
        backward(loss(model(points_of(case, number)), labels))

    def backward(value: Tensor) -> None:
        value.backward()
        optimizer.step()

    labels = torch.tensor([sample // 2 % 3 for sample in share(case)])
    return model, step


def metric_learning_loss(case: Case) -> tuple[nn.Module, Callable[[int], None]]:
    return embedding(case, efficient=False)


def metric_learning_efficient_loss(case: Case) -> tuple[nn.Module, Callable[[int], None]]:
    return embedding(case, efficient=True)


PARTS = [
    Part(TrainStep(metric_learning_loss), "`DistributedLossWrapper(ContrastiveLoss())`"),
    Part(
        TrainStep(metric_learning_efficient_loss),
        "`DistributedLossWrapper(ContrastiveLoss(), efficient=True)`",
        [
            Breach(
                ("MOD-02",),
                "a rank's embeddings get no gradient as another rank's references",
                "pytorch_metric_learning/efficient.py",
            )
        ],
    ),
]


@parametrize_with_parts(PARTS)
def test_pytorch_metric_learning(subject: Subject, check: BoundCheck) -> None:
    check(subject)
