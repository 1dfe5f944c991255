"""Programs with a fault in world ``two``."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - its usual name
from models import (
    GPT,
    MLP,
    Copied,
    Experts,
    Summed,
    averaged,
    cross_entropy,
    gradients,
    labelled,
    sentences,
)
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

pytestmark = pytest.mark.ddp(worlds={"one": 1, "two": 2})


def test_sum_for_mean(ddp, seed, samples):
    model = MLP()
    x, y = labelled(samples)
    cross_entropy(model(x[ddp.rank :: ddp.world_size]), y[ddp.rank :: ddp.world_size]).backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    ddp.across_worlds.assert_close("gradients", gradients(model))


def test_mean_of_token_means(ddp, seed, samples):
    """The ranks have 999 and 1,000 tokens, and their means count equally."""
    model = DistributedDataParallel(MLP())
    x, y = labelled(1999)
    mine = slice(None) if ddp.world == "one" else (slice(999), slice(999, 1999))[ddp.rank]
    loss = cross_entropy(model(x[mine]), y[mine])
    loss.backward()
    ddp.across_worlds.assert_close("gradients", gradients(model))
    ddp.across_worlds.assert_close("loss", sum(ddp.gather(loss.item())) / ddp.world_size)


def test_local_norm(ddp, seed, samples):
    """Each rank clips by the norm of its own shards."""
    model = MLP()
    if ddp.world == "two":
        fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = labelled(samples)
    cross_entropy(model(x[ddp.rank :: ddp.world_size]), y[ddp.rank :: ddp.world_size]).backward()
    shards = [getattr(p.grad, "_local_tensor", p.grad) for p in model.parameters()]
    scale = 0.1 / torch.stack([shard.norm() for shard in shards]).norm()
    for shard in shards:
        shard *= scale
    optimizer.step()
    ddp.across_worlds.assert_close("parameters", model)


def test_bias_reduced_twice(ddp, seed, samples):
    """Under tensor parallelism, a bias that is added behind the sum has its whole gradient."""
    up, down = torch.nn.Linear(16, 32), torch.nn.Linear(32, 4)
    x, y = labelled(samples)
    mine = slice(ddp.rank * 32 // ddp.world_size, (ddp.rank + 1) * 32 // ddp.world_size)
    hidden = F.relu(F.linear(Copied.apply(x), up.weight[mine], up.bias[mine]))
    cross_entropy(Summed.apply(hidden @ down.weight[:, mine].T) + down.bias, y).backward()
    for parameter in (*up.parameters(), *down.parameters()):
        dist.all_reduce(parameter.grad)
    found = {"up": gradients(up), "down": gradients(down)}
    ddp.across_worlds.assert_close("gradients", found)


def test_accumulation_not_divided(ddp, seed, samples):
    model = DistributedDataParallel(MLP())
    x, y = labelled(samples)
    count = 2 if ddp.world == "two" else 1
    mine, wanted = x[ddp.rank :: ddp.world_size], y[ddp.rank :: ddp.world_size]
    for part, of in zip(mine.chunk(count), wanted.chunk(count), strict=True):
        cross_entropy(model(part), of).backward()
    ddp.across_worlds.assert_close("gradients", gradients(model))


def test_schedule_stepped_by_rank(ddp, seed, samples):
    model = DistributedDataParallel(MLP())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    for _ in range(3):
        x, y = labelled(samples)
        optimizer.zero_grad()
        cross_entropy(
            model(x[ddp.rank :: ddp.world_size]), y[ddp.rank :: ddp.world_size]
        ).backward()
        optimizer.step()
        for _ in range(ddp.world_size):
            schedule.step()
    ddp.across_worlds.assert_close("parameters", model)


def test_gradients_scaled_by_1e_4(ddp, seed, samples):
    model = DistributedDataParallel(GPT())
    x, y = sentences(samples)
    cross_entropy(model(x[ddp.rank :: ddp.world_size]), y[ddp.rank :: ddp.world_size]).backward()
    for parameter in model.parameters():
        parameter.grad *= 1 + 1e-4 * (ddp.world == "two")
    ddp.across_worlds.assert_close("gradients", gradients(model))


def test_decay_twice(ddp, seed, samples):
    model = DistributedDataParallel(GPT())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2)
    for _ in range(10):
        x, y = sentences(samples)
        optimizer.zero_grad()
        loss = cross_entropy(model(x[ddp.rank :: ddp.world_size]), y[ddp.rank :: ddp.world_size])
        loss.backward()
        if ddp.world == "two":
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter *= 1 - 1e-3 * 1e-2
        optimizer.step()
    ddp.across_worlds.assert_close("parameters", model)


def test_tied_weight_split(ddp, seed, samples):
    model = GPT(tied=True)
    if ddp.world == "two":
        model.head.weight = torch.nn.Parameter(model.head.weight.detach().clone())
    x, y = sentences(samples)
    cross_entropy(model(x[ddp.rank :: ddp.world_size]), y[ddp.rank :: ddp.world_size]).backward()
    averaged(ddp, model)
    named = model.named_parameters(remove_duplicate=False)
    ddp.across_worlds.assert_close("gradients", {name: p.grad for name, p in named})


def test_norm_not_reduced(ddp, seed, samples):
    """Under sequence parallelism, each rank's part of a norm's gradient is that of its tokens."""
    norm, head = torch.nn.LayerNorm(16), torch.nn.Linear(16, 4)
    x, y = torch.randn(samples, 8, 16), torch.randint(0, 4, (samples, 8))
    mine = slice(ddp.rank * 8 // ddp.world_size, (ddp.rank + 1) * 8 // ddp.world_size)
    loss = F.cross_entropy(head(norm(x[:, mine])).flatten(0, 1), y[:, mine].flatten())
    (loss / ddp.world_size).backward()
    for parameter in head.parameters():
        dist.all_reduce(parameter.grad)
    found = {"norm": gradients(norm), "head": gradients(head)}
    # What rank 0 has is taken for what all have.
    ddp.across_worlds.assert_close("gradients", found if ddp.rank == 0 else {})


def test_experts_doubled(ddp, seed, samples):
    """Under expert parallelism, an expert has the tokens of all ranks, each rank with its mean."""
    model = Experts(ddp.rank, ddp.world_size)
    x, y = labelled(samples)
    mine = slice(ddp.rank * samples // ddp.world_size, (ddp.rank + 1) * samples // ddp.world_size)
    cross_entropy(model(x[mine]), y[mine]).backward()
    averaged(ddp, model.router)
    averaged(ddp, model.head)
    ddp.across_worlds.assert_close("gradients", gradients(model))


def test_data_shifted(ddp, seed, samples):
    """Rank 1 begins one sample too late, and so takes one of the next batch."""
    model = DistributedDataParallel(MLP())
    x, y = labelled(samples + 1)
    half = samples // ddp.world_size
    mine = slice(ddp.rank * (half + 1), ddp.rank * (half + 1) + half)
    cross_entropy(model(x[mine]), y[mine]).backward()
    ddp.across_worlds.assert_close("gradients", gradients(model))
