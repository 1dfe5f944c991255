"""Mesh and shapes of FSDP2 on 1024 ranks of torch's ``fake`` backend, which sends nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from ddp_reference.training.config import TrainConfig
from ddp_reference.training.lifecycle import build_model, build_optimizer
from ddp_reference.training.stages import STAGES
from ddp_reference.training.wrap import setup_fsdp2, shard_units
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset

RANKS = 1024
CONFIG = TrainConfig(stage="diffusion", strategy="fsdp2", width=512, depth=2, min_num_params=4000)


@contextmanager
def fake_rank(rank: int) -> Iterator[None]:
    """This process as one of :data:`RANKS`, without its peers."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=RANKS)
    try:
        yield
    finally:
        dist.destroy_process_group()


def sharded() -> nn.Module:
    return setup_fsdp2(build_model(STAGES["diffusion"], CONFIG), CONFIG, local_rank=0)


@pytest.mark.parametrize("rank", [0, 1, 511, 512, 1023])
def test_a_rank_holds_its_shard_and_no_more(rank: int) -> None:
    whole = {
        name: p.shape for name, p in build_model(STAGES["diffusion"], CONFIG).named_parameters()
    }
    with fake_rank(rank):
        model = sharded()
        assert {name: parameter.shape for name, parameter in model.named_parameters()} == whole
        for parameter in model.parameters():
            assert isinstance(parameter, DTensor)
            rows = -(-parameter.shape[0] // RANKS)
            begin = min(rank * rows, parameter.shape[0])
            held = min(rows, parameter.shape[0] - begin)
            assert parameter.to_local().shape == (held, *parameter.shape[1:])


def test_the_shards_of_all_ranks_are_the_whole_parameter() -> None:
    with fake_rank(0):
        parameters = [p for p in sharded().parameters() if isinstance(p, DTensor)]
    for parameter in parameters:
        spans = [
            _compute_local_shape_and_global_offset(
                parameter.shape, (RANKS,), (rank,), parameter.placements
            )
            for rank in range(RANKS)
        ]
        assert sum(torch.Size(shape).numel() for shape, _ in spans) == parameter.numel()
        for (shape, begin), (_, after) in pairwise(spans):
            assert begin[0] + shape[0] == after[0]


def test_a_step_goes_through_and_the_optimizer_owns_the_shards() -> None:
    with fake_rank(0):
        model = sharded()
        optimizer = build_optimizer(model, CONFIG)
        owned = {id(p) for group in optimizer.param_groups for p in group["params"]}
        assert owned == {id(p) for p in model.parameters()}
        model(torch.ones(2, 12), torch.zeros(2, 1)).sum().backward()
        for parameter in model.parameters():
            assert isinstance(parameter.grad, DTensor)
            assert parameter.grad.to_local().shape == parameter.to_local().shape
        optimizer.step()
        assert shard_units(model, CONFIG.min_num_params)


def test_a_mesh_of_two_dimensions_has_every_rank_once() -> None:
    with fake_rank(1000):
        mesh = init_device_mesh("cpu", (128, 8), mesh_dim_names=("replicate", "shard"))
        assert tuple(mesh.get_coordinate() or ()) == (125, 0)
        assert mesh.mesh.flatten().tolist() == list(range(RANKS))
        assert mesh["shard"].mesh.tolist() == list(range(1000, 1008))
