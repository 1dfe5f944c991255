"""The four stages: a model, and the loss of each sample of a batch. All else is shared."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .models import (
    SIGMA_MIN,
    ConsistencyModel,
    Denoiser,
    LatentOperator,
    ModelSize,
    SteadyPrior,
)

Batch = Mapping[str, Tensor]

SIGMA_MAX = 4.0
# Steps of the consistency stage's noise levels. With many, neighbours differ so little that
# an untrained model has a low loss already.
LEVELS = 4


@dataclass(frozen=True, slots=True)
class Stage:
    """What is particular to a stage.

    build_model: a fresh model on the CPU.
    losses: loss of each sample (B,) in float32. It calls the model exactly once, as DDP's
        static graph, Join and accumulation all count forward calls.
    """

    name: str
    build_model: Callable[[ModelSize], nn.Module]
    losses: Callable[[nn.Module, Batch], Tensor]


def operator_losses(model: nn.Module, batch: Batch) -> Tensor:
    """Squared error of the predicted latent."""
    predicted = model(batch["field"], batch["condition"])
    return _squared_error(predicted, batch["next_latent"])


def diffusion_losses(model: nn.Module, batch: Batch) -> Tensor:
    """Squared error of the predicted noise, on the cosine path from latent to noise."""
    level = batch["level"]
    angle = level * math.pi / 2
    noisy = angle.cos() * batch["latent"] + angle.sin() * batch["noise"]
    return _squared_error(model(noisy, level), batch["noise"])


def consistency_losses(model: nn.Module, batch: Batch) -> Tensor:
    """Distance between the model's answers at two neighbouring noise levels of one path.

    The lower level is the target and carries no gradient. Both levels go through in one
    call, the lower half of the doubled batch being detached.
    """
    step = (batch["level"] * LEVELS).floor()
    low, high = _sigma(step), _sigma(step + 1)
    latent, noise = batch["latent"], batch["noise"]
    paths = torch.cat([latent + high * noise, latent + low * noise])
    answer, target = model(paths, torch.cat([high, low])).chunk(2)
    return _squared_error(answer, target.detach())


def steady_prior_losses(model: nn.Module, batch: Batch) -> Tensor:
    """Negative log likelihood of the steady latent, in nats per entry, less a constant."""
    mean, log_variance = model(batch["condition"])
    log_variance = log_variance.float()
    error: Tensor = (batch["steady"] - mean.float()) ** 2
    losses: Tensor = 0.5 * (log_variance + error * (-log_variance).exp())
    return losses.mean(1)


def _squared_error(predicted: Tensor, target: Tensor) -> Tensor:
    # float32 whatever the precision of the forward: bf16 has 8 bits for the sum
    return ((predicted.float() - target.float()) ** 2).mean(1)


def _sigma(step: Tensor) -> Tensor:
    growth: Tensor = (SIGMA_MAX / SIGMA_MIN) ** (step / LEVELS)
    return SIGMA_MIN * growth


STAGES: Mapping[str, Stage] = {
    stage.name: stage
    for stage in (
        Stage("operator", LatentOperator, operator_losses),
        Stage("diffusion", Denoiser, diffusion_losses),
        Stage("consistency", ConsistencyModel, consistency_losses),
        Stage("steady-prior", SteadyPrior, steady_prior_losses),
    )
}
