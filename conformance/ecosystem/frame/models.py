"""A model and its steps for whatever wraps, steps or averages it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from ddp_conformance import Case
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


class Net(nn.Module):
    """Small enough for all of its gradients to be written down."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))

    def forward(self, points: Tensor) -> Tensor:
        out: Tensor = self.layers(points)
        return out


class CentredNet(Net):
    """A net with a running mean of what it has been trained on, which it uses for evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.mean: Tensor
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, points: Tensor) -> Tensor:
        if not self.training:
            return super().forward(points - self.mean)
        with torch.no_grad():
            self.mean.lerp_(points.mean(0), 0.1)
        return super().forward(points)


def wrapped(case: Case, model: nn.Module) -> nn.Module:
    """The model in DDP, or as it is for one process."""
    return model if case.world_size == 1 else DistributedDataParallel(model)


def share(case: Case) -> range:
    """The samples of this rank, all ranks having equally many."""
    return range(case.rank, case.size, case.world_size)


def points_of(case: Case, number: int) -> Tensor:
    """This rank's share of a batch: [samples, 3]."""
    seeds = torch.tensor([[100.0 * number + sample + 1] for sample in share(case)])
    return torch.sin(seeds * torch.arange(1.0, 4.0))


def evaluating(case: Case, model: nn.Module, used: nn.Module) -> Callable[[], None]:
    """A pass of the module that is ``used`` in an evaluation of the model."""

    def evaluate() -> None:
        model.eval()
        with torch.no_grad():
            used(points_of(case, 9))
        model.train()

    return evaluate


def stepping(
    case: Case, model: nn.Module, optimizer: torch.optim.Optimizer | None = None
) -> Callable[[int], None]:
    """Steps on the mean over this rank's samples, by default with AdamW."""
    chosen = optimizer or torch.optim.AdamW(model.parameters(), 0.01)

    def step(number: int) -> None:
        points = points_of(case, number)
        chosen.zero_grad()
        (model(points) - points.sum(1, keepdim=True)).square().mean().backward()
        chosen.step()

    return step
