"""MOD-04: models with buffers that differ between ranks when they are used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from ddp_conformance.framework.case import Case
from ddp_conformance.framework.mutants import BenignVariant, Mutant
from ddp_conformance.model.mutants.step_mutants import (
    FEATURES,
    SmallNet,
    Step,
    batch_of,
    share,
    stepping,
    wrapped,
)
from ddp_conformance.model.subjects import TrainStep

Saved = Mapping[str, Any]
Made = tuple[nn.Module, Step, Callable[[], object], Callable[[], Saved]]


class Tracks(SmallNet):
    """Keeps a running mean of what it is trained on, and uses it where it is evaluated."""

    def __init__(self) -> None:
        super().__init__()
        self.mean: Tensor
        self.register_buffer("mean", torch.zeros(FEATURES))

    def forward(self, points: Tensor) -> Tensor:
        if not self.training:
            return super().forward(points - self.mean)
        with torch.no_grad():
            self.mean.lerp_(points.mean(0), 0.1)
        return super().forward(points)


def used(case: Case, model: nn.Module, evaluated: nn.Module, before: Callable[[], object]) -> Made:
    """A model that is trained and saved, the module of it that is evaluated, and a first act."""

    def evaluate() -> None:
        before()
        model.eval()
        with torch.no_grad():
            evaluated(batch_of(9, share(case))[0])
        model.train()

    def checkpoint() -> Saved:
        before()
        return bare(model).state_dict()

    return model, stepping(case, model), evaluate, checkpoint


def bare(model: nn.Module) -> nn.Module:
    """The model without DDP."""
    module: nn.Module = getattr(model, "module", model)
    return module


def sharded(case: Case) -> nn.Module:
    """Shard by ``fully_shard``, which cuts parameters and leaves buffers to the ranks."""
    torch.manual_seed(0)
    model = Tracks()
    if case.world_size > 1:
        fully_shard(model, mesh=init_device_mesh("cpu", (case.world_size,)))
    return model


def nothing() -> None:
    """The default: nothing is done before."""


def averaging(case: Case, model: nn.Module) -> Callable[[], object]:
    """The mean over ranks in place of each rank's own buffer."""

    def average() -> None:
        for buffer in model.buffers() if case.world_size > 1 else ():
            dist.all_reduce(buffer)
            buffer /= case.world_size

    return average


# ------------------------------------------------------------------ right ones


def averages_buffers(case: Case) -> Made:
    """Buffers are averaged before each use, so that the model may be evaluated without DDP."""
    model = wrapped(case, Tracks())
    return used(case, model, bare(model), averaging(case, model))


def averages_sharded(case: Case) -> Made:
    """The same under ``fully_shard``."""
    model = sharded(case)
    return used(case, model, model, averaging(case, model))


def evaluates_before_it_saves(case: Case) -> Made:
    """DDP's forward pass sends rank 0's buffers; a checkpoint is made after one."""
    model = wrapped(case, Tracks())
    _, step, evaluate, checkpoint = used(case, model, model, nothing)

    def evaluate_and_save() -> Saved:
        evaluate()
        return checkpoint()

    return model, step, evaluate, evaluate_and_save


# ------------------------------------------------------------------ wrong ones


def evaluates_past_wrapper(case: Case) -> Made:
    """``ddp.module(x)`` between epochs: nothing has sent the buffers since they were written."""
    model = wrapped(case, Tracks())
    _, step, evaluate, checkpoint = used(case, model, bare(model), nothing)
    average = averaging(case, model)

    def average_and_save() -> Saved:
        average()
        return checkpoint()

    return model, step, evaluate, average_and_save


def saves_past_wrapper(case: Case) -> Made:
    """``ddp.module.state_dict()`` after a training step, with each rank's own statistics."""
    model = wrapped(case, Tracks())
    return used(case, model, model, nothing)


def keeps_buffers_apart(case: Case) -> Made:
    """``broadcast_buffers=False``, to save a collective."""
    model = wrapped(case, Tracks(), broadcast_buffers=False)
    return used(case, model, model, nothing)


def shards_parameters_alone(case: Case) -> Made:
    """``fully_shard`` in place of DDP, in the belief that it sends buffers as DDP does."""
    model = sharded(case)
    return used(case, model, model, nothing)


SIZES = (2, 3)
TRAITS = frozenset({"buffers"})

MUTANTS = (
    Mutant(TrainStep(evaluates_past_wrapper, TRAITS), "MOD-04", "evaluates ddp.module", SIZES),
    Mutant(TrainStep(saves_past_wrapper, TRAITS), "MOD-04", "saves ddp.module", SIZES),
    Mutant(TrainStep(keeps_buffers_apart, TRAITS), "MOD-04", "broadcast_buffers=False", SIZES),
    Mutant(TrainStep(shards_parameters_alone, TRAITS), "MOD-04", "buffers and fully_shard", SIZES),
)

BENIGN_VARIANTS = (
    BenignVariant(
        TrainStep(averages_buffers, TRAITS), "evaluates ddp.module, buffers averaged", (1, 2, 3)
    ),
    BenignVariant(TrainStep(averages_sharded, TRAITS), "fully_shard, buffers averaged", (1, 2)),
    BenignVariant(
        TrainStep(evaluates_before_it_saves, TRAITS), "saves ddp.module after a pass", (2, 3)
    ),
)
