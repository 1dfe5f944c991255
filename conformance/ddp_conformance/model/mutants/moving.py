"""Collectives of parallel plans, through which gradients go back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class _Exchanged(torch.autograd.Function):
    """Rows for each rank, as ``all_to_all_single`` deals them out; gradients go the way back."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, given: list[int], taken: list[int]) -> Tensor:
        """``given`` rows go to each rank, ``taken`` ones come from each."""
        ctx.given, ctx.taken = given, taken
        out = rows.new_empty(sum(taken), *rows.shape[1:])
        dist.all_to_all_single(out, rows.contiguous(), taken, given)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """Send gradients to where the rows came from."""
        (gradient,) = gradients
        back = gradient.new_empty(sum(ctx.given), *gradient.shape[1:])
        dist.all_to_all_single(back, gradient.contiguous(), ctx.given, ctx.taken)
        return back, None, None


class _Gathered(torch.autograd.Function):
    """The rows of all ranks, which have equally many."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        """Gather in the order of the ranks."""
        parts = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, rows.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        """The sum of what all ranks' uses of this rank's rows give."""
        whole = gradients[0].contiguous().clone()
        dist.all_reduce(whole)
        return whole.chunk(dist.get_world_size())[dist.get_rank()].contiguous()


class _GatheredForAll(_Gathered):
    """The rows of all ranks, of which all ranks make the same."""

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        """This rank's rows of it."""
        return gradients[0].chunk(dist.get_world_size())[dist.get_rank()].contiguous()


class _FromTheRankBefore(torch.autograd.Function):
    """A step of a ring: a tensor goes to the next rank, and its gradient comes back from there."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        """What the rank before has."""
        return _passed_on(tensor, 1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        """The gradient of the next rank's use."""
        return _passed_on(gradients[0], -1)


def _passed_on(tensor: Tensor, by: int) -> Tensor:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    found = torch.empty_like(tensor)
    messages = [
        dist.P2POp(dist.isend, tensor.contiguous(), (rank + by) % world_size),
        dist.P2POp(dist.irecv, found, (rank - by) % world_size),
    ]
    for work in dist.batch_isend_irecv(messages):
        work.wait()
    return found


class _Summed(torch.autograd.Function):
    """The sum of all ranks' parts; each part has the sum's gradient."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, group: Any = None) -> Tensor:
        """Sum on all ranks of the group."""
        whole = part.clone()
        dist.all_reduce(whole, group=group)
        return whole

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Pass the gradient on as it is."""
        return gradients[0], None


class _UsedByAll(torch.autograd.Function):
    """A tensor that all ranks of a group have, of which each uses another part."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: Any = None) -> Tensor:
        """Pass the tensor on as it is."""
        ctx.group = group
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """The sum over what they use it for."""
        whole = gradients[0].contiguous().clone()
        dist.all_reduce(whole, group=ctx.group)
        return whole, None


def exchanged(rows: Tensor, given: list[int], taken: list[int]) -> Tensor:
    """Rows of all ranks: this one gives each of them so many, and takes so many of each."""
    return _applied(_Exchanged, rows, given, taken)


def gathered(rows: Tensor) -> Tensor:
    """The rows of all ranks, in their order; each has equally many."""
    return _applied(_Gathered, rows)


def gathered_for_all(rows: Tensor) -> Tensor:
    """The same, where all ranks have the gradient of all uses."""
    return _applied(_GatheredForAll, rows)


def from_the_rank_before(tensor: Tensor) -> Tensor:
    """What the rank before has, as this one's goes to the next."""
    return _applied(_FromTheRankBefore, tensor)


def summed(part: Tensor, group: Any = None) -> Tensor:
    """The sum of a group's parts, on all of its ranks."""
    return _applied(_Summed, part, group)


def used_by_all(tensor: Tensor, group: Any = None) -> Tensor:
    """The same tensor, whose gradient is summed over the group."""
    return _applied(_UsedByAll, tensor, group)


def _applied(function: Any, *args: Any) -> Tensor:
    out: Tensor = function.apply(*args)
    return out


def summed_over_ranks(value: Tensor, group: Any = None) -> Tensor:
    """A copy that is summed; not through gradients."""
    total = value.detach().clone()
    dist.all_reduce(total, group=group)
    return total


def square(gradients: Iterable[Tensor | None]) -> Tensor:
    """The square of their norm; float64."""
    squares = [g.double().square().sum() for g in gradients if g is not None]
    return torch.stack(squares).sum() if squares else torch.zeros((), dtype=torch.float64)


def clip(gradients: Sequence[Tensor | None], norm: float, limit: float) -> None:
    """Scale them as for a norm of at most the limit, where it is larger."""
    for gradient in gradients:
        if gradient is not None and norm > limit:
            gradient.mul_(limit / norm)
