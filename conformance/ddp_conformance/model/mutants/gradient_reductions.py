"""MOD-10: steps that reduce gradients more often than once, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.optim import SGD

from ddp_conformance.framework.case import Case
from ddp_conformance.framework.mutants import BenignVariant, Mutant
from ddp_conformance.model.mutants.step_mutants import (
    RATE,
    Made,
    SmallNet,
    batch_of,
    share,
    summed_loss,
    wrapped,
)
from ddp_conformance.model.subjects import TrainStep

Reduce = Callable[[nn.Module], None]


def nothing(model: nn.Module) -> None:
    """What the backward pass does is enough."""


def stepping(case: Case, model: Any, reduce: Reduce = nothing) -> Made:
    """Steps on the mean of the ranks' means, with something done to the gradients before."""
    optimizer = SGD(model.parameters(), RATE)
    device = next(model.parameters()).device

    def step(number: int) -> None:
        points, targets = (part.to(device) for part in batch_of(number, share(case)))
        optimizer.zero_grad()
        loss: Any = nn.functional.mse_loss(model(points), targets)
        loss.backward()
        if case.world_size > 1:
            reduce(model)
        optimizer.step()

    return model, step


def unwrapped(case: Case) -> SmallNet:
    """The same model on all ranks, in no wrapper."""
    torch.manual_seed(0)
    return SmallNet()


def gradients(model: nn.Module) -> list[Tensor]:
    """The gradients that there are."""
    return [p.grad for p in model.parameters() if p.grad is not None]


def split(flat: Tensor, like: list[Tensor]) -> tuple[Tensor, ...]:
    """A buffer's part for each of some tensors."""
    return torch.split(flat, [one.numel() for one in like])


def average_each(model: nn.Module) -> None:
    """A mean of each parameter's gradient, one after the other."""
    for gradient in gradients(model):
        dist.all_reduce(gradient)
        gradient /= dist.get_world_size()


def average_flat(model: nn.Module, overlap: int = 0) -> None:
    """One buffer for all gradients, reduced in two parts at once, the second as a list of one."""
    found = gradients(model)
    flat = torch.cat([gradient.reshape(-1) for gradient in found]) / dist.get_world_size()
    middle = len(flat) // 2
    first = dist.all_reduce(flat[: middle + overlap], async_op=overlap == 0)
    if first is not None:
        first.wait()
    dist.all_reduce_coalesced([flat[middle:]])
    for gradient, values in zip(found, split(flat, found), strict=True):
        gradient.copy_(values.view_as(gradient))


def average_shards(model: nn.Module) -> None:
    """Average as ZeRO does: each rank gets the sum of its shard, and all gather the shards."""
    found, size = gradients(model), dist.get_world_size()
    flat = torch.cat([gradient.reshape(-1) for gradient in found]) / size
    padded = nn.functional.pad(flat, (0, -len(flat) % size))
    own = padded.new_empty(len(padded) // size)
    dist.reduce_scatter_tensor(own, padded)
    dist.all_gather_into_tensor(padded, own)
    for gradient, values in zip(found, split(padded[: len(flat)], found), strict=True):
        gradient.copy_(values.view_as(gradient))


# ------------------------------------------------------------------ right ones


def averages_by_hand(case: Case) -> Made:
    """An all_reduce for each parameter, and no DDP."""
    return stepping(case, unwrapped(case), average_each)


def averages_in_parts(case: Case) -> Made:
    """Two all_reduces on disjoint ranges of one buffer."""
    return stepping(case, unwrapped(case), average_flat)


def averages_by_shards(case: Case) -> Made:
    """A reduce_scatter, and an all_gather of what it made."""
    return stepping(case, unwrapped(case), average_shards)


def averages_in_hooks(case: Case) -> Made:
    """A hook of each parameter reduces its gradient before it is accumulated."""
    model = unwrapped(case)

    def hook(gradient: Tensor) -> Tensor:
        reduced = gradient / case.world_size
        dist.all_reduce(reduced)
        return reduced

    for parameter in model.parameters() if case.world_size > 1 else ():
        handle: Any = parameter
        handle.register_hook(hook)
    return stepping(case, model)


class _AveragedBackward(torch.autograd.Function):
    """The identity, whose backward is a mean over ranks."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        if not dist.is_initialized():
            return gradient
        reduced = gradient / dist.get_world_size()
        dist.all_reduce(reduced)
        return reduced


class AveragesInGraph(nn.Module):
    """A model in which gradients are reduced before they come to the parameters."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, points: Tensor) -> Any:
        """Run the model with each parameter behind a function."""
        averaged: Any = _AveragedBackward
        own = {name: averaged.apply(p) for name, p in self.inner.named_parameters()}
        return torch.func.functional_call(self.inner, own, (points,))


def averages_in_graph(case: Case) -> Made:
    """The mean is a part of the graph."""
    return stepping(case, AveragesInGraph(unwrapped(case)))


def averages_in_small_buckets(case: Case) -> Made:
    """A bucket for each parameter, made anew after the first step."""
    return stepping(case, wrapped(case, SmallNet(), bucket_cap_mb=1e-6))


def averages_as_views(case: Case) -> Made:
    """Gradients that are views of the buckets, with a static graph."""
    options = {"gradient_as_bucket_view": True, "static_graph": True}
    return stepping(case, wrapped(case, SmallNet(), **options))


def averages_in_half(case: Case) -> Made:
    """A hook that sends half of the bits."""
    model = wrapped(case, SmallNet())
    if case.world_size > 1:
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return stepping(case, model)


def averages_by_rank_one(case: Case) -> Made:
    """PowerSGD: two factors in place of each matrix."""
    model = wrapped(case, SmallNet())
    if case.world_size > 1:
        options: Any = {"matrix_approximation_rank": 1, "start_powerSGD_iter": 2}
        state = powerSGD_hook.PowerSGDState(None, min_compression_rate=1, **options)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return stepping(case, model)


def averages_by_node(case: Case) -> Made:
    """HSDP: within pairs of ranks, then across them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    if case.world_size > 1:
        shape = (case.world_size // 2, 2)
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard"))
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return stepping(case, model)


def log_norms(model: nn.Module) -> None:
    """Means for a log: of norms, and of one element of each gradient; and the largest ones."""
    dist.all_reduce(nn.utils.get_total_norm(gradients(model)))
    for gradient in gradients(model):
        dist.all_reduce(gradient.norm())
        dist.all_reduce(gradient.reshape(-1)[:1].clone())
        dist.all_reduce(gradient.abs().max(), dist.ReduceOp.MAX)


def logs_norms(case: Case) -> Made:
    """Numbers that are made of gradients are reduced as well."""
    return stepping(case, wrapped(case, SmallNet()), log_norms)


def accumulating(
    case: Case, model: Any, around: Callable[[int], Any], reduce: Reduce = nothing
) -> Made:
    """Two halves of a share; ``around`` gives the context of each half."""
    optimizer = SGD(model.parameters(), RATE)

    def step(number: int) -> None:
        optimizer.zero_grad()
        points, targets = batch_of(number, share(case))
        for place, parts in enumerate(zip(points.chunk(2), targets.chunk(2), strict=True)):
            with around(place):
                (summed_loss(model, *parts) / len(share(case))).backward()
        if case.world_size > 1:
            reduce(model)
        optimizer.step()

    return model, step


def reduces_the_last(case: Case) -> Made:
    """``no_sync`` around all passes but the last."""
    model = wrapped(case, SmallNet())
    return accumulating(
        case, model, lambda p: model.no_sync() if case.world_size > 1 and p == 0 else nullcontext()
    )


def shards_each_pass(case: Case) -> Made:
    """FSDP2 reduces in each pass, to keep shards of gradients alone: each pass's own, once."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    if case.world_size > 1:
        fully_shard(model, mesh=init_device_mesh("cpu", (case.world_size,)))
    return accumulating(case, model, lambda p: nullcontext())


# ------------------------------------------------------------------ wrong ones


def averages_again(case: Case) -> Made:
    """DDP has reduced, and a function from the time before DDP does it once more."""
    return stepping(case, wrapped(case, SmallNet()), average_each)


def averages_shards_again(case: Case) -> Made:
    """The same by another operation: a reduce_scatter of what DDP has reduced."""
    return stepping(case, wrapped(case, SmallNet()), average_shards)


def reduces_each_pass(case: Case) -> Made:
    """Run two passes without ``no_sync``: the second pass reduces again what the first one has."""
    return accumulating(case, wrapped(case, SmallNet()), lambda p: nullcontext())


def averages_before_sharding(case: Case) -> Made:
    """A hook from the time before FSDP2 reduces what its reduce_scatter then reduces again."""
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    if case.world_size == 1:
        return stepping(case, model)
    fully_shard(model, mesh=init_device_mesh("cpu", (case.world_size,)))
    hooked: list[Any] = []

    def average(gradient: Tensor) -> Tensor:
        dist.all_reduce(gradient)
        return gradient / case.world_size

    def hook(module: nn.Module, _: Any) -> None:
        for parameter in module.parameters():
            if not any(parameter is known for known in hooked):
                hooked.append(parameter)
                handle: Any = parameter
                handle.register_hook(average)

    model.register_forward_pre_hook(hook)
    return stepping(case, model)


def averages_every_tenth_again(case: Case) -> Made:
    """A look at whether ranks agree, every tenth step, by a mean of all gradients."""
    model = wrapped(case, SmallNet())
    steps = iter(range(1, 1000))

    def reduce(model: nn.Module) -> None:
        if next(steps) % 10 == 0:
            average_flat(model)

    return stepping(case, model, reduce)


def averages_overlapping_parts(case: Case) -> Made:
    """The two ranges have some elements in common."""
    return stepping(case, unwrapped(case), lambda model: average_flat(model, overlap=3))


def leaves_out_head(case: Case) -> Made:
    """The last layer is left out of the means."""

    def reduce(model: Any) -> None:
        average_each(model.enter)

    return stepping(case, unwrapped(case), reduce)


def never_closes(case: Case) -> Made:
    """``no_sync`` around all passes."""
    model = wrapped(case, SmallNet())
    sync = model.no_sync if case.world_size > 1 else nullcontext
    return accumulating(case, model, lambda p: sync())


ONCE = frozenset({"reduces_once"})


def once(make: Callable[[Case], Made]) -> TrainStep:
    """A subject that reduces each element once, or declares to."""
    return TrainStep(make, ONCE)


TWO = (2,)

MUTANTS = (
    Mutant(once(averages_again), "MOD-10", "DDP, and an all_reduce by hand", (2, 3, 4)),
    Mutant(once(averages_shards_again), "MOD-10", "DDP, and a reduce_scatter", TWO),
    Mutant(once(reduces_each_pass), "MOD-10", "accumulation without no_sync", (2, 4)),
    Mutant(once(averages_before_sharding), "MOD-10", "a hook, and FSDP2", TWO),
    Mutant(once(averages_every_tenth_again), "MOD-10", "a second mean every tenth step", TWO),
    Mutant(once(averages_overlapping_parts), "MOD-10", "two ranges that overlap", TWO),
    Mutant(once(leaves_out_head), "MOD-10", "a layer that nothing reduces", TWO),
    Mutant(once(never_closes), "MOD-10", "no_sync around every pass", TWO),
)

BENIGN_VARIANTS = (
    BenignVariant(once(averages_by_hand), "an all_reduce for each parameter", (2, 3)),
    BenignVariant(once(averages_in_parts), "disjoint ranges of one buffer", TWO),
    BenignVariant(once(averages_by_shards), "reduce_scatter and all_gather", (2, 3)),
    BenignVariant(once(averages_in_hooks), "reduced before it is accumulated", TWO),
    BenignVariant(once(averages_in_graph), "reduced before it comes to the parameter", TWO),
    BenignVariant(once(averages_in_small_buckets), "more buckets from the second step on", TWO),
    BenignVariant(once(averages_as_views), "gradients that are views of buckets", TWO),
    BenignVariant(TrainStep(averages_in_half, ONCE, tolerance=1e-2), "compressed to float16", TWO),
    BenignVariant(once(averages_by_node), "HSDP: within a node, and across nodes", (4,)),
    BenignVariant(once(logs_norms), "norms, and single elements, for a log", TWO),
    BenignVariant(once(reduces_the_last), "no_sync in all passes but the last", TWO),
    BenignVariant(once(shards_each_pass), "each pass's own gradient, reduced at once", TWO),
)
