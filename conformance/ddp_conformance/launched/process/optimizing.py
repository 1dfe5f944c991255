"""Which parameters are live, which ones the optimizers own, and what their steps change."""

from __future__ import annotations

import hashlib
import sys
import weakref
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from ddp_conformance.launched.history import Optimized
from ddp_conformance.launched.journal import Journal
from ddp_conformance.launched.process.delays import Nemesis


class Optimizing:
    """Follows the steps of all optimizers of this rank."""

    def __init__(self, rank: int, journal: Journal, nemesis: Nemesis) -> None:
        self._rank = rank
        self._journal = journal
        self._nemesis = nemesis
        self._wrapped: list[weakref.ref[nn.Module]] = []
        self._sharded = False
        self._before: list[str] = []
        self.steps = 0
        """Optimizer steps so far."""

    def install(self) -> None:
        """Register hooks for every step."""
        register_optimizer_step_pre_hook(self._begins)
        register_optimizer_step_post_hook(self._ends)

    def wrapped(self, module: nn.Module) -> None:
        """Take a module's parameters as live from now on; it is not kept alive."""
        self._wrapped.append(weakref.ref(module))
        self._sharded |= not isinstance(module, DistributedDataParallel)

    def _live(self, optimizer: Optimizer) -> dict[int, tuple[str, Tensor]]:
        """Live parameters by identity, with their names; without a wrapper, the optimizer's own."""
        found: dict[int, tuple[str, Tensor]] = {}
        modules = [module for ref in self._wrapped if (module := ref()) is not None]
        # Parts are wrapped before the whole, which knows the full names.
        for module in modules:
            named = nn.Module.named_parameters(module)
            found.update({id(p): (name, p) for name, p in named if p.requires_grad})
        if not self._wrapped:
            owned = list(parameters_in(optimizer))
            found = {id(p): (f"parameter {i}", p) for i, p in enumerate(owned) if p.requires_grad}
        return found

    def _begins(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if any(callers()):
            return  # a part of a step
        self._nemesis.at_step()
        self._before = [digest([tensor]) for _, tensor in self._live(optimizer).values()]

    def _ends(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if any(callers()):
            return
        self.steps += 1
        live = self._live(optimizer)
        tensors = [tensor for _, tensor in live.values()]
        after = [digest([tensor]) for tensor in tensors]
        owned = {id(parameter): parameter for parameter in parameters_in(optimizer)}
        self._journal.add(
            Optimized(
                self._rank,
                self.steps,
                max(float(group.get("lr", 1.0)) for group in optimizer.param_groups),
                bool(self._wrapped),
                tuple(name for name, _ in live.values()),
                tuple(name for identity, (name, _) in live.items() if identity in owned),
                sum(p.requires_grad for identity, p in owned.items() if identity not in live),
                sum(old != new for old, new in zip(self._before, after, strict=True)),
                digest(tensors),
                tuple(total for tensor in tensors for total in _sums(tensor)),
                self._sharded,
            )
        )


def callers() -> Iterator[Optimizer]:
    """The optimizers whose ``step`` is on the stack: ZeroRedundancyOptimizer's calls another one's.

    Only those for which torch calls hooks: some wrappers are optimizers by their type alone.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "step":
            owner = frame.f_locals.get("self")
            if isinstance(owner, Optimizer) and getattr(type(owner).step, "hooked", False):
                yield owner
        frame = frame.f_back


def parameters_in(optimizer: Optimizer) -> Iterator[Tensor]:
    """The parameters of an optimizer, group by group."""
    for group in optimizer.param_groups:
        yield from group["params"]


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a parameter or a gradient; dense."""
    tensor = tensor.detach()
    part = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return part if part.layout == torch.strided else part.to_dense()


@torch.no_grad()
def digest(tensors: Sequence[Tensor]) -> str:
    """The digest of the content of this rank's parts, to the last bit."""
    total = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        flat = local(tensor).cpu().contiguous().reshape(-1)
        total.update(flat.view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def _sums(tensor: Tensor) -> tuple[float, float]:
    values = local(tensor).double()
    return values.sum().item(), values.abs().sum().item()
