"""MOD-02 and MOD-08: steps that rounding moves by more than any fixed limit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.optim import SGD

from ddp_conformance.framework.case import Case
from ddp_conformance.framework.mutants import BenignVariant, Mutant
from ddp_conformance.model.mutants.moving import clip, square, summed
from ddp_conformance.model.mutants.step_mutants import (
    RATE,
    Made,
    SmallNet,
    batch_of,
    share,
    wrapped,
)
from ddp_conformance.model.mutants.tensor_parallel import own
from ddp_conformance.model.subjects import TrainStep


class AutocastStep:
    """Forward passes in bfloat16 under DDP; clips by the norm that it reports."""

    scale = 1.0

    def __init__(self, case: Case) -> None:
        self.case = case
        torch.manual_seed(3)
        self.model: Any = wrapped(case, SmallNet())
        self.optimizer = SGD(self.model.parameters(), RATE)

    def step(self, number: int) -> Mapping[str, float]:
        """Step on the mean of the ranks' means."""
        points, targets = batch_of(number, share(self.case))
        self.optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            out = self.model(points)
        loss: Any = nn.functional.mse_loss(out.float(), targets) * self.scale
        loss.backward()
        gradients = [parameter.grad for parameter in self.model.parameters()]
        norm = float(square(gradients).sqrt())
        clip(gradients, norm, 100.0)
        self.optimizer.step()
        return {"norm": norm}


def in_autocast(case: Case) -> Any:
    """Right: each rank's samples are rounded as in one process, and sums are not."""
    made = AutocastStep(case)
    return made.model, made.step


class AutocastTimesRanks(AutocastStep):
    """The loss times the ranks, as where gradients are summed."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.scale = float(case.world_size)


def in_autocast_times_ranks(case: Case) -> Any:
    """No rounding is so large."""
    made = AutocastTimesRanks(case)
    return made.model, made.step


class AutocastClippedByRank(AutocastStep):
    """Reports a norm that is a third too small, which all ranks agree on."""

    def step(self, number: int) -> Mapping[str, float]:
        """The norm of a mean is divided as if it were a sum."""
        return {"norm": super().step(number)["norm"] / math.sqrt(self.case.world_size)}


def in_autocast_norm_divided(case: Case) -> Any:
    """A norm that no rounding makes."""
    made = AutocastClippedByRank(case)
    return made.model, made.step


FEATURES = 4
"""The number of features, of which each rank has its part."""


class AtTheKink(nn.Module):
    """Inputs that cancel, so that rounding decides what a ReLU lets through.

    Each rank sums its part of the inputs, so that another order of additions is right.
    """

    def __init__(self, case: Case) -> None:
        super().__init__()
        half = torch.tensor([[0.3, 0.7], [-0.4, 0.9], [0.2, -0.8]])
        weight = torch.cat([half, half], 1)
        self.mesh: Any = None
        if case.world_size > 1:
            self.mesh = init_device_mesh("cpu", (case.world_size,))
            weight = distribute_tensor(weight, self.mesh, [Shard(1)])
        self.weight = nn.Parameter(weight)
        self.leave = nn.Linear(3, 1)
        with torch.no_grad():
            self.leave.weight.copy_(torch.tensor([[0.5, -0.4, 0.6]]))

    def forward(self, points: Tensor) -> Tensor:
        part = points @ own(self.weight).T
        whole = part if self.mesh is None else summed(part, self.mesh.get_group())
        out: Tensor = self.leave(whole.relu())
        return out


def cancelling(case: Case, scale: float = 1.0) -> Made:
    """All ranks have all samples, and of each their part of its features."""
    torch.manual_seed(3)
    model = AtTheKink(case)
    optimizer = SGD(model.parameters(), RATE)
    width = FEATURES // case.world_size
    place = case.rank * width

    def step(number: int) -> None:
        points, targets = batch_of(number, range(case.size))
        points = points[:, :2]
        points = torch.cat([points, -points], 1)[:, place : place + width]
        optimizer.zero_grad()
        loss: Any = nn.functional.mse_loss(model(points), targets) * scale
        loss.backward()
        optimizer.step()

    return model, step


def at_the_kink(case: Case) -> Made:
    """Right."""
    return cancelling(case)


def at_the_kink_times_ranks(case: Case) -> Made:
    """The loss times the ranks."""
    return cancelling(case, float(case.world_size))


SIZES = (2, 4)
DECIDES = frozenset({"decides"})

MUTANTS = (
    Mutant(
        TrainStep(in_autocast_times_ranks, DECIDES),
        "MOD-02",
        "a loss times the ranks, in bfloat16",
        SIZES,
    ),
    Mutant(
        TrainStep(at_the_kink_times_ranks), "MOD-02", "a loss times the ranks, at a kink", SIZES
    ),
    Mutant(
        TrainStep(in_autocast_norm_divided, DECIDES),
        "MOD-08",
        "a norm divided by a root of the ranks, in bfloat16",
        SIZES,
    ),
)

BENIGN_VARIANTS = (
    BenignVariant(TrainStep(in_autocast, DECIDES), "forward passes in bfloat16", SIZES),
    BenignVariant(TrainStep(at_the_kink), "a ReLU within rounding of zero", SIZES),
)
