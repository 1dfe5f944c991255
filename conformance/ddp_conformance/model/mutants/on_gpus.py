"""MOD-01, MOD-09 and MOD-10: models and steps on GPUs."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from ddp_conformance.framework.case import Case
from ddp_conformance.framework.mutants import BenignVariant, Mutant
from ddp_conformance.model.mutants.gradient_reductions import average_each, stepping
from ddp_conformance.model.mutants.statistics import trained
from ddp_conformance.model.mutants.step_mutants import FEATURES, Made, wrapped
from ddp_conformance.model.subjects import TrainStep


def gpu() -> torch.device:
    """The GPU of this rank, which its launcher has made the current one."""
    return torch.device("cuda", torch.cuda.current_device())


def bare() -> nn.Sequential:
    """Two layers, the same on all ranks."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, 1)).to(gpu())


# ------------------------------------------------------------------ right ones


def sharded(case: Case) -> Made:
    """FSDP2, a unit for each layer."""
    model = bare()
    if case.world_size > 1:
        mesh = init_device_mesh("cuda", (case.world_size,))
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return stepping(case, model)


def converted(case: Case) -> Made:
    """torch's own SyncBatchNorm."""
    norm = nn.SyncBatchNorm(FEATURES) if case.world_size > 1 else nn.BatchNorm1d(FEATURES)
    return trained(case, norm, gpu())


# ------------------------------------------------------------------ wrong ones


def left_unwrapped(case: Case) -> Made:
    """Each rank trains by itself."""
    return stepping(case, bare())


def not_converted(case: Case) -> Made:
    """torch's BatchNorm."""
    return trained(case, nn.BatchNorm1d(FEATURES), gpu())


def averages_again(case: Case) -> Made:
    """DDP has reduced, and a function from the time before DDP does it once more."""
    return stepping(case, wrapped(case, bare()), average_each)


GPU = frozenset({"gpu"})
SYNC = GPU | {"sync_batchnorm"}
ONCE = GPU | {"reduces_once"}
TWO = (2,)

MUTANTS = (
    Mutant(TrainStep(left_unwrapped, GPU), "MOD-01", "no DDP, GPU", TWO),
    Mutant(TrainStep(not_converted, SYNC), "MOD-09", "BatchNorm not converted, GPU", TWO),
    Mutant(
        TrainStep(averages_again, ONCE, name="averages_again_on_gpu"),
        *("MOD-10", "DDP, and an all_reduce by hand, GPU", TWO),
    ),
)

BENIGN_VARIANTS = (
    BenignVariant(TrainStep(sharded, ONCE), "FSDP2, on GPUs", TWO),
    BenignVariant(TrainStep(converted, SYNC), "torch's SyncBatchNorm, on GPUs", TWO),
)
