"""The training script's model, wrap, accumulation and clipping keep the model guarantees."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

import torch
from ddp_conformance import Case, Subject, TrainStep, parametrize_with_checks
from ddp_reference.training.burgers import latent_pairs
from ddp_reference.training.checkpoint import full_model_state
from ddp_reference.training.config import Strategy, TrainConfig, local_batch_size
from ddp_reference.training.data import BatchPlan
from ddp_reference.training.distributed import World
from ddp_reference.training.lifecycle import build_model, build_optimizer
from ddp_reference.training.models import POINTS, LatentOperator, ModelSize
from ddp_reference.training.stages import STAGES
from ddp_reference.training.wrap import (
    clip_gradients,
    data_world,
    gradient_sync,
    send_buffers,
    wrap,
)
from torch import Tensor, nn

if TYPE_CHECKING:
    from ddp_conformance.frontend.pytest_frontend import BoundCheck

BATCHES = 14
"""The number of batches, of which the last one is for evaluation."""

Made: TypeAlias = tuple[
    nn.Module,
    Callable[[int], Mapping[str, float]],
    Callable[[], None],
    Callable[[], Mapping[str, Tensor]],
]


class TrackingOperator(LatentOperator):
    """An operator with a mean of the fields that it was trained on: the stages have no buffers."""

    def __init__(self, size: ModelSize) -> None:
        super().__init__(size)
        self.register_buffer("mean", torch.zeros(POINTS))

    def forward(self, field: Tensor, condition: Tensor) -> Tensor:
        if self.training:
            self.get_buffer("mean").lerp_(field.mean(0), 0.1)
        return super().forward(field, condition)


OPERATOR = replace(STAGES["operator"], build_model=TrackingOperator)


def make_operator(case: Case, strategy: Strategy, accumulate: int = 1) -> Made:
    """The operator stage, on batches of ``case.size`` samples."""
    distributed = case.world_size > 1
    config = TrainConfig(
        strategy=strategy if distributed else "none",
        batch_size=case.size,
        accumulate=accumulate,
        clip_norm=0.1,
        width=4,
        depth=1,
        min_num_params=50,
    )
    world = World(torch.device("cpu"), distributed, case.rank, case.world_size, case.rank)
    data = data_world(config, world)
    local = local_batch_size(config, data.world_size)
    plan = BatchPlan(case.size, local, accumulate, data.world_size, data.rank, pads=True)
    model = wrap(build_model(OPERATOR, config), config, world)
    optimizer = build_optimizer(model, config)
    pairs = latent_pairs(BATCHES * case.size, seed=0)

    def losses(number: int, place: int) -> Tensor:
        own = range(number * case.size + data.rank, (number + 1) * case.size, data.world_size)
        rows = list(own)[place * local : (place + 1) * local]
        return OPERATOR.losses(model, {key: values[rows] for key, values in pairs.items()})

    def step(number: int) -> Mapping[str, float]:
        for place in range(accumulate):
            with gradient_sync(model, closes_step=plan.closes_step(place)):
                (losses(number, place).sum() * plan.loss_scale(place)).backward()
        norm = clip_gradients(model, config.clip_norm)
        optimizer.step()
        optimizer.zero_grad()
        return {"norm": norm}

    def evaluate() -> None:
        if distributed:
            send_buffers(model, source=0)
        model.eval()
        with torch.no_grad():
            losses(BATCHES - 1, 0)
        model.train()

    def checkpoint() -> Mapping[str, Tensor]:
        if distributed:
            send_buffers(model, source=0)
        return full_model_state(model)

    return model, step, evaluate, checkpoint


def operator_ddp(case: Case) -> Made:
    return make_operator(case, "ddp")


def operator_ddp_accumulating(case: Case) -> Made:
    return make_operator(case, "ddp", accumulate=2)


def operator_fsdp2_accumulating(case: Case) -> Made:
    return make_operator(case, "fsdp2", accumulate=2)


def operator_tp(case: Case) -> Made:
    return make_operator(case, "tp")


def operator_fsdp2_tp_accumulating(case: Case) -> Made:
    return make_operator(case, "fsdp2_tp", accumulate=2)


TRAITS = {"buffers", "decides", "reduces_once"}
SUBJECTS = [
    TrainStep(operator_ddp, TRAITS),
    TrainStep(operator_ddp_accumulating, TRAITS | {"accumulates"}),
    TrainStep(operator_fsdp2_accumulating, TRAITS | {"accumulates"}),
]
SPLIT = [
    TrainStep(operator_tp, {"buffers", "decides"}),
    TrainStep(operator_fsdp2_tp_accumulating, {"accumulates", "buffers", "decides"}),
]
"""MOD-10 cannot be judged: all gradients are DTensors."""


@parametrize_with_checks(SUBJECTS, world_size=(1, 2, 4), share_ranks=True)
def test_reference(subject: Subject, check: BoundCheck) -> None:
    check(subject)


@parametrize_with_checks(SPLIT, world_size=(2, 4), share_ranks=True)
def test_split(subject: Subject, check: BoundCheck) -> None:
    check(subject)
