"""A checkpoint moves between strategies, and between one process and several, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import torch
from ddp_conformance.determinism.loops import alone
from ddp_reference.training.burgers import latent_pairs
from ddp_reference.training.checkpoint import (
    Progress,
    load_checkpoint,
    normalise_keys,
    save_checkpoint,
)
from ddp_reference.training.config import Strategy, TrainConfig
from ddp_reference.training.distributed import World
from ddp_reference.training.lifecycle import build_model
from ddp_reference.training.stages import STAGES
from ddp_reference.training.wrap import data_world, wrap
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import AdamW, Optimizer

from pytest_ddp import Ddp

STEPS = 3
IDENTITY = {"stage": "operator"}
CPU = torch.device("cpu")


def config_of(strategy: Strategy, seed: int) -> TrainConfig:
    """The operator, with other initial weights for each seed; a unit of FSDP for each layer."""
    return TrainConfig(strategy=strategy, width=6, depth=1, min_num_params=50, seed=seed)


def world_of(strategy: Strategy, ddp: Ddp) -> World:
    if strategy == "none":
        return World(CPU, False, 0, 1, 0)
    return World(CPU, True, ddp.rank, ddp.world_size, ddp.rank)


def made(config: TrainConfig, world: World, rate: float) -> tuple[nn.Module, Optimizer]:
    """An optimizer with a group that decays and one that does not, at other rates for each
    ``rate``.
    """
    model = wrap(build_model(STAGES["operator"], config), config, world)
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": 5 * rate},
        {"params": vectors, "lr": rate / 2, "weight_decay": 0.0},
    ]
    return model, AdamW(groups, lr=rate)


def train(model: nn.Module, optimizer: Optimizer, config: TrainConfig, world: World) -> None:
    data = data_world(config, world)
    pairs = latent_pairs(STEPS * 4 * data.world_size, seed=0)
    for step in range(STEPS):
        rows = range(step * data.world_size + data.rank, len(pairs["field"]), STEPS)
        batch = {key: values[list(rows)] for key, values in pairs.items()}
        optimizer.zero_grad()
        loss: Any = STAGES["operator"].losses(model, batch).mean()
        loss.backward()
        optimizer.step()


def held(model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """Parameters, moments, step counters and groups, put together without the checkpoint's code."""
    named = dict(model.named_parameters())
    names = {parameter: name for name, parameter in normalise_keys(named).items()}
    content: dict[str, Any] = {name: whole(parameter) for parameter, name in names.items()}
    for number, group in enumerate(optimizer.param_groups):
        own = [names[parameter] for parameter in group["params"]]
        settings = {key: value for key, value in group.items() if key not in ("params", "betas")}
        content[f"group {number}"] = {
            **settings,
            "names": own,
            "betas": list(group["betas"]),  # torch's loading makes a list of the pair
        }
        for parameter, name in zip(group["params"], own, strict=True):
            state: Mapping[str, Tensor] = optimizer.state.get(parameter, {})
            content |= {f"{name} {key}": whole(value) for key, value in state.items()}
    return content


def whole(tensor: Tensor) -> list[float]:
    full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    numbers: list[float] = full.detach().double().flatten().tolist()
    return numbers


def move(ddp: Ddp, directory: Path, source: Strategy, target: Strategy) -> None:
    """Train with one strategy and save; load with another, which has begun elsewhere."""
    path = directory / "moved.ckpt"
    world, config = world_of(source, ddp), config_of(source, seed=0)
    with alone() if source == "none" else nullcontext():
        model, optimizer = made(config, world, rate=0.01)
        train(model, optimizer, config, world)
        before = held(model, optimizer)
        # All ranks train where one would do; the first one's file is the one that is read.
        own = directory / f"{ddp.rank}.ckpt" if source == "none" and ddp.rank else path
        save_checkpoint(own, model, optimizer, Progress(1, 2), world, IDENTITY)
    ddp.barrier()
    world, config = world_of(target, ddp), config_of(target, seed=1)
    with alone() if target == "none" else nullcontext():
        model, optimizer = made(config, world, rate=0.02)
        assert held(model, optimizer).keys() < before.keys()
        progress = load_checkpoint(path, model, optimizer, world, IDENTITY)
        assert held(model, optimizer) == before
    assert (progress.epoch, progress.batches) == (1, 2)


@pytest.mark.ddp(world_size=2)
@pytest.mark.parametrize(("source", "target"), [*permutations(("none", "fsdp2", "tp"), 2)])
def test_a_checkpoint_moves(ddp: Ddp, tmp_path: Path, source: Strategy, target: Strategy) -> None:
    move(ddp, tmp_path, source, target)


@pytest.mark.ddp(world_size=4)
@pytest.mark.parametrize(
    ("source", "target"), [*permutations(("none", "ddp", "fsdp2", "tp", "fsdp2_tp"), 2)]
)
def test_a_checkpoint_moves_between_all(
    ddp: Ddp, tmp_path: Path, source: Strategy, target: Strategy
) -> None:
    move(ddp, tmp_path, source, target)
