"""The training script's model, wrap, accumulation and clipping keep the model guarantees."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from ddp_conformance import Case, Subject, TrainStep, parametrize_with_checks
from ddp_reference.training import STAGES, TrainConfig, World
from ddp_reference.training.burgers import latent_pairs
from ddp_reference.training.config import Strategy
from ddp_reference.training.data import BatchPlan
from ddp_reference.training.lifecycle import build_model, build_optimizer
from ddp_reference.training.wrap import clip_gradients, gradient_sync, wrap
from torch import nn

if TYPE_CHECKING:
    from ddp_conformance.pytest_frontend import BoundCheck

OPERATOR = STAGES["operator"]
BATCHES = 2


def make_operator(
    case: Case, strategy: Strategy, accumulate: int = 1
) -> tuple[nn.Module, Callable[[int], None]]:
    """The operator stage, on batches of ``case.size`` samples."""
    distributed = case.world_size > 1
    config = TrainConfig(
        strategy=strategy if distributed else "none",
        accumulate=accumulate,
        width=4,
        depth=1,
        min_num_params=50,
    )
    world = World(torch.device("cpu"), distributed, case.rank, case.world_size, case.rank)
    local = case.size // case.world_size // accumulate
    plan = BatchPlan(case.size, local, accumulate, case.world_size, case.rank, pads=True)
    model = wrap(build_model(OPERATOR, config), config, world)
    optimizer = build_optimizer(model, config)
    pairs = latent_pairs(BATCHES * case.size, seed=0)

    def step(number: int) -> None:
        own = range(number * case.size + case.rank, (number + 1) * case.size, case.world_size)
        for place in range(accumulate):
            rows = list(own)[place * local : (place + 1) * local]
            batch = {key: values[rows] for key, values in pairs.items()}
            with gradient_sync(model, closes_step=plan.closes_step(place)):
                losses = OPERATOR.losses(model, batch)
                (losses.sum() * plan.loss_scale(place)).backward()
        clip_gradients(model, config.clip_norm)
        optimizer.step()
        optimizer.zero_grad()

    return model, step


def operator_ddp(case: Case) -> tuple[nn.Module, Callable[[int], None]]:
    return make_operator(case, "ddp")


def operator_ddp_accumulating(case: Case) -> tuple[nn.Module, Callable[[int], None]]:
    return make_operator(case, "ddp", accumulate=2)


def operator_fsdp2_accumulating(case: Case) -> tuple[nn.Module, Callable[[int], None]]:
    return make_operator(case, "fsdp2", accumulate=2)


SUBJECTS = [
    TrainStep(operator_ddp),
    TrainStep(operator_ddp_accumulating, {"accumulates"}),
    TrainStep(operator_fsdp2_accumulating, {"accumulates"}),
]


@parametrize_with_checks(SUBJECTS, world_size=(2,))
def test_reference(subject: Subject, check: BoundCheck) -> None:
    check(subject)
