"""Averages of ema-pytorch beside a model under DDP."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from ddp_conformance import Case, Subject, TrainStep
from torch import nn

from conformance.ecosystem.frame.models import CentredNet, Net, evaluating, stepping, wrapped
from conformance.ecosystem.frame.parts import Breach, Part, parametrize_with_parts

if TYPE_CHECKING:
    from ddp_conformance.frontend.pytest_frontend import BoundCheck

ema_pytorch = pytest.importorskip("ema_pytorch")


def averaged(case: Case, model: nn.Module) -> tuple[nn.Module, Any, Callable[[int], None]]:
    """The wrapped model, its average, and the step of both."""
    online = wrapped(case, model)
    average = ema_pytorch.EMA(model, beta=0.9, update_after_step=0, update_every=1)
    train = stepping(case, online)

    def step(number: int) -> None:
        train(number)
        average.update()

    return online, average, step


def ema_parameters(case: Case) -> tuple[nn.Module, Callable[[int], None]]:
    """Make a module that has both models, so that both are judged."""
    _, average, step = averaged(case, Net())
    return average, step


def ema_buffers(case: Case) -> Any:
    """The average is what is saved."""
    online, average, step = averaged(case, CentredNet())
    return online, step, evaluating(case, online, online), average.ema_model.state_dict


PARTS = [
    Part(TrainStep(ema_parameters), "`EMA(model)`, and `update()` after each step of DDP"),
    Part(
        TrainStep(ema_buffers, {"buffers"}),
        "`EMA(model)` of a model with running statistics, and `ema.ema_model.state_dict()`",
        [
            Breach(
                ("MOD-04",),
                "it averages each rank's own buffers, which DDP never sends",
                "ema_pytorch/buffers.py",
            )
        ],
    ),
]


@parametrize_with_parts(PARTS)
def test_ema_pytorch(subject: Subject, check: BoundCheck) -> None:
    check(subject)
