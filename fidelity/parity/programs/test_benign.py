"""Programs whose worlds are right, and differ where worlds rightly may."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - its usual name
from models import (
    GPT,
    MLP,
    Experts,
    averaged,
    cast,
    cross_entropy,
    gradients,
    labelled,
    like,
    sentences,
    train,
)
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

pytestmark = pytest.mark.ddp(worlds={"one": 1, "two": 2})
BOTH = pytest.mark.parametrize("dtype", ["float32", "bfloat16"])


def adam(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def tensor_parallel(model, mesh):
    """A GPT's attention and feed-forward layers in parts; all else stays a plain tensor."""
    columns = ("attention.q", "attention.k", "attention.v", "up")
    for block in model.blocks:
        plan = {name: ColwiseParallel() for name in columns}
        plan |= {name: RowwiseParallel() for name in ("attention.o", "down")}
        parallelize_module(block, mesh, plan)
    return model


def sharded(model, mesh=None):
    for block in getattr(model, "blocks", ()):
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def batches_of(model, samples, count, make=labelled):
    batches = [make(samples) for _ in range(count)]
    return [(like(x, model) if x.is_floating_point() else x, y) for x, y in batches]


# ------------------------------------------------------------------ data-parallel plans


@BOTH
def test_ddp(ddp, seed, samples, dtype):
    model = DistributedDataParallel(cast(MLP(), dtype))
    train(ddp, model, adam(model), batches_of(model, samples, 3))


@BOTH
def test_fsdp2(ddp, seed, samples, dtype):
    model = sharded(cast(GPT(), dtype))
    train(ddp, model, adam(model), batches_of(model, samples, 3, sentences))


@pytest.mark.ddp(worlds={"one": 1, "hsdp": 4})
def test_hsdp(ddp, seed, samples):
    shape = (2, 2) if ddp.world == "hsdp" else (1, 1)
    model = sharded(MLP(), init_device_mesh("cpu", shape, mesh_dim_names=("replica", "shard")))
    train(ddp, model, adam(model), batches_of(model, samples, 2))


@pytest.mark.ddp(worlds={"two": 2, "one": 1, "three": 3})
def test_reference_of_two(ddp, seed, samples):
    samples = samples // 6 * 6
    model = DistributedDataParallel(MLP())
    train(ddp, model, adam(model), batches_of(model, samples, 2))


@BOTH
def test_key_biases(ddp, seed, samples, dtype):
    """The gradient of a key's bias is zero but for rounding, of which Adam makes whole steps."""
    model = DistributedDataParallel(cast(GPT(), dtype))
    train(ddp, model, adam(model), batches_of(model, samples, 3, sentences))


@BOTH
def test_bias_before_a_norm(ddp, seed, samples, dtype):
    layers = nn.Conv1d(1, 6, 3), nn.InstanceNorm1d(6), nn.ReLU(), nn.Flatten(), nn.Linear(84, 4)
    model = DistributedDataParallel(cast(nn.Sequential(*layers), dtype))
    batches = [(x.unsqueeze(1), y) for x, y in batches_of(model, samples, 3)]
    train(ddp, model, adam(model), batches)


@BOTH
def test_top_k_routing(ddp, seed, samples, dtype):
    model = DistributedDataParallel(cast(Experts(), dtype), find_unused_parameters=True)
    train(ddp, model, adam(model), batches_of(model, samples, 3))


@BOTH
def test_tied_weights(ddp, seed, samples, dtype):
    model = sharded(cast(GPT(tied=True), dtype))
    train(ddp, model, adam(model), batches_of(model, samples, 2, sentences))


def test_unused_parameters(ddp, seed, samples):
    model = MLP()
    model.unused = nn.Linear(3, 3)
    if ddp.world == "two":
        model = DistributedDataParallel(model, find_unused_parameters=True)
    train(ddp, model, adam(model), batches_of(model, samples, 2))


@BOTH
def test_empty_shards(ddp, seed, samples, dtype):
    model = sharded(cast(MLP(out=1), dtype))
    batches = [(x, like(x, model).mean(1)) for x, _ in batches_of(model, samples, 2)]
    train(ddp, model, adam(model), batches, lambda found, y: F.mse_loss(found[:, 0], y))


@BOTH
def test_accumulation(ddp, seed, samples, dtype):
    model = DistributedDataParallel(cast(MLP(), dtype))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    count = 4 // ddp.world_size
    for x, y in batches_of(model, samples, 2):
        optimizer.zero_grad()
        mine = zip(
            x[ddp.rank :: ddp.world_size].chunk(count),
            y[ddp.rank :: ddp.world_size].chunk(count),
            strict=True,
        )
        for number, (part, of) in enumerate(mine):
            is_last = number == count - 1
            with contextlib.nullcontext() if is_last else model.no_sync():
                (cross_entropy(model(part), of) / count).backward()
        ddp.across_worlds.assert_close("gradients", gradients(model))
        optimizer.step()
    ddp.across_worlds.assert_close("parameters", model)


def test_activation_checkpointing(ddp, seed, samples):
    model = GPT()
    if ddp.world == "two":
        model.blocks = nn.ModuleList(checkpoint_wrapper(block) for block in model.blocks)
    model = DistributedDataParallel(model)
    train(ddp, model, adam(model), batches_of(model, samples, 2, sentences))


@BOTH
def test_clipping_by_the_global_norm(ddp, seed, samples, dtype):
    model = sharded(cast(MLP(), dtype))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in batches_of(model, samples, 3):
        optimizer.zero_grad()
        x, y = x[ddp.rank :: ddp.world_size], y[ddp.rank :: ddp.world_size]
        cross_entropy(model(x), y).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        ddp.across_worlds.assert_close("norm", norm)
        ddp.across_worlds.assert_close("gradients", gradients(model))
        optimizer.step()
    ddp.across_worlds.assert_close("parameters", model)


def test_autocast(ddp, seed, samples):
    model = DistributedDataParallel(GPT())
    optimizer = adam(model)
    for x, y in batches_of(model, samples, 2, sentences):
        optimizer.zero_grad()
        x, y = x[ddp.rank :: ddp.world_size], y[ddp.rank :: ddp.world_size]
        with torch.autocast("cpu", torch.bfloat16):
            loss = cross_entropy(model(x), y)
        loss.backward()
        ddp.across_worlds.assert_close("gradients", gradients(model))
        optimizer.step()
    ddp.across_worlds.assert_close("parameters", model)


def test_skipped_step_of_a_scaler(ddp, seed, samples):
    """The first step overflows, and the scaler leaves it out."""
    model = DistributedDataParallel(MLP())
    optimizer = adam(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, backoff_factor=2.0**-60)
    for x, y in batches_of(model, samples, 4):
        optimizer.zero_grad()
        x, y = x[ddp.rank :: ddp.world_size], y[ddp.rank :: ddp.world_size]
        scaler.scale(cross_entropy(model(x), y) * 1e3).backward()
        scaler.step(optimizer)
        scaler.update()
        ddp.across_worlds.assert_close("scale", scaler.get_scale())
    ddp.across_worlds.assert_close("parameters", model)


def test_threads(ddp, seed, samples):
    torch.set_num_threads(2 if ddp.world == "one" else 1)
    model = DistributedDataParallel(GPT())
    train(ddp, model, adam(model), batches_of(model, samples, 2, sentences))


def test_wrappers(ddp, seed, samples):
    model = MLP()
    if ddp.world == "two":
        model = DistributedDataParallel(torch.compile(checkpoint_wrapper(model), backend="eager"))
    train(ddp, model, adam(model), batches_of(model, samples, 2))


def test_random_numbers(ddp, seed, samples):
    """Each step draws its data, after the computations of those before."""
    model = DistributedDataParallel(MLP())
    optimizer = adam(model)
    for _ in range(3):
        x, y = labelled(samples)
        for drawn in (x, y):
            dist.broadcast(drawn, 0)
        optimizer.zero_grad()
        x, y = x[ddp.rank :: ddp.world_size], y[ddp.rank :: ddp.world_size]
        cross_entropy(model(x), y).backward()
        optimizer.step()
    ddp.across_worlds.assert_close("parameters", model)


@BOTH
def test_convolutions(ddp, seed, samples, dtype):
    layers = (
        *(nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(16, 4)),
    )
    model = DistributedDataParallel(cast(nn.Sequential(*layers), dtype))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batches = [(x.unflatten(1, (1, 4, 4)), y) for x, y in batches_of(model, samples, 2)]
    train(ddp, model, optimizer, batches)


# ------------------------------------------------------------------ plans with parts of layers


@BOTH
def test_tensor_parallel(ddp, seed, samples, dtype):
    """A plan for parts of layers leaves plain parameters beside DTensors."""
    model = cast(GPT(), dtype)
    if ddp.world == "two":
        tensor_parallel(model, init_device_mesh("cpu", (2,)))
    _train_all(ddp, model, batches_of(model, samples, 2, sentences))


def _train_all(ddp, model, batches):
    """Each rank has all samples. One kernel cannot take plain tensors and DTensors."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    for x, y in batches:
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        ddp.across_worlds.assert_close("gradients", gradients(model))
        optimizer.step()
    ddp.across_worlds.assert_close("parameters", model)


@pytest.mark.ddp(worlds={"one": 1, "four": 4})
def test_fsdp2_with_tensor_parallel(ddp, seed, samples):
    model = GPT()
    rank, size = 0, 1
    if ddp.world == "four":
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        sharded(tensor_parallel(model, mesh["tp"]), mesh["dp"])
        rank, size = mesh["dp"].get_local_rank(), 2
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    for x, y in batches_of(model, samples, 2, sentences):
        optimizer.zero_grad()
        cross_entropy(model(x[rank::size]), y[rank::size]).backward()
        ddp.across_worlds.assert_close("gradients", gradients(model))
        optimizer.step()
    ddp.across_worlds.assert_close("parameters", model)


def test_sequence_parallel(ddp, seed, samples):
    layers = nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16), nn.LayerNorm(16), nn.Linear(16, 4)
    model = nn.Sequential(*layers)
    if ddp.world == "two":
        mesh = init_device_mesh("cpu", (2,))
        plan = {
            "0": ColwiseParallel(),
            "2": RowwiseParallel(output_layouts=Shard(0)),
            "3": SequenceParallel(sequence_dim=0),
            "4": PrepareModuleInput(
                input_layouts=Shard(0), desired_input_layouts=Replicate(), use_local_output=True
            ),
        }
        parallelize_module(model, mesh, plan)
    _train_all(ddp, model, batches_of(model, samples, 2))


def test_expert_parallel(ddp, seed, samples):
    model = Experts(ddp.rank, ddp.world_size)
    optimizer = adam(model)
    mine = slice(ddp.rank * samples // ddp.world_size, (ddp.rank + 1) * samples // ddp.world_size)
    for x, y in batches_of(model, samples, 2):
        optimizer.zero_grad()
        cross_entropy(model(x[mine]), y[mine]).backward()
        averaged(ddp, model.router)
        averaged(ddp, model.head)
        for parameter in model.experts.parameters():
            parameter.grad /= ddp.world_size
        ddp.across_worlds.assert_close("gradients", gradients(model))
        optimizer.step()
    ddp.across_worlds.assert_close("parameters", model)


def test_stages_of_a_pipeline(ddp, seed, samples):
    whole = nn.Sequential(*(MLP(16) for _ in range(2)))
    mine = whole if ddp.world == "one" else whole[ddp.rank : ddp.rank + 1]
    optimizer = torch.optim.SGD(mine.parameters(), lr=0.1)
    for x, y in batches_of(mine, samples, 2):
        optimizer.zero_grad()
        if ddp.world == "one":
            cross_entropy(mine(x), y).backward()
        else:
            stage = PipelineStage(mine, ddp.rank, 2, torch.device("cpu"))
            schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=cross_entropy)
            schedule.step(x) if ddp.rank == 0 else schedule.step(target=y)
        ddp.across_worlds.assert_close("gradients", gradients(mine))
        optimizer.step()
    ddp.across_worlds.assert_close("parameters", mine)


def test_relu_near_zero(ddp, seed, samples):
    """Hidden units within rounding of zero flip, and so do others in the steps that follow."""
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16), nn.ReLU())
    model.append(nn.Linear(16, 4))
    with torch.no_grad():
        # Both halves of the sum are equal, but for their sign.
        model[0].weight[16:], model[0].bias[16:] = model[0].weight[:16], model[0].bias[:16]
        model[2].weight[:8, 16:] = -model[2].weight[:8, :16]
        model[2].bias[:8] = 1e-8 * torch.randn(8)
    if ddp.world == "two":
        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        parallelize_module(model, init_device_mesh("cpu", (2,)), plan)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    for x, y in batches_of(model, samples, 5):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        ddp.across_worlds.assert_close("gradients", gradients(model))
        optimizer.step()
    ddp.across_worlds.assert_close("parameters", model)
