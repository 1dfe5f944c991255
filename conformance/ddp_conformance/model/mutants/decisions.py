"""MOD-08: steps that are skipped, scaled or clipped, by all ranks together or by each alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import SGD

from ddp_conformance.framework.case import Case
from ddp_conformance.framework.mutants import BenignVariant, Mutant
from ddp_conformance.model.mutants.step_mutants import RATE, SmallNet, batch_of, share, wrapped
from ddp_conformance.model.subjects import TrainStep

Decisions = Mapping[str, Tensor | float]
Made = tuple[nn.Module, Callable[[int], Decisions]]

SCALE = 1024.0
OVERFLOWING = 1
"""The sample with an infinite loss in the first step; a sample of rank 1, if there are several."""


class Parts:
    """A step of a network with a loss scale, in parts that mutants replace."""

    limit = 0.5
    """The limit of the norm: below that of each step here."""

    def __init__(self, case: Case) -> None:
        self.case = case
        torch.manual_seed(0)
        self.model = self.wrap(SmallNet())
        self.optimizer = SGD(self.model.parameters(), RATE)
        self.scale = SCALE

    def wrap(self, model: nn.Module) -> Any:
        """DDP where there are ranks."""
        return wrapped(self.case, model)

    def step(self, number: int) -> Decisions:
        """Scaled, clipped, and skipped where a gradient is not finite."""
        scale = self.scale
        self.optimizer.zero_grad()
        (self.loss(number) * scale).backward()  # type: ignore[no-untyped-call]
        for parameter in self.model.parameters():
            parameter.grad /= scale
        norm = self.clip()
        if math.isfinite(norm):
            self.optimizer.step()
        else:
            self.scale /= 2
        return {"scale": scale, "norm": norm}

    def loss(self, number: int) -> Tensor:
        """The mean over the rank's share."""
        samples = share(self.case)
        points, targets = batch_of(number, samples)
        losses = (self.model(points) - targets).squeeze(1) ** 2
        weights = [math.inf if (number, s) == (0, OVERFLOWING) else 1.0 for s in samples]
        loss: Tensor = (losses * torch.tensor(weights)).mean()
        return loss

    def clip(self) -> float:
        """The norm of the gradients, which DDP has made that of all ranks."""
        return float(nn.utils.clip_grad_norm_(self.model.parameters(), self.limit))


# ------------------------------------------------------------------ right ones


def scales_and_clips(case: Case) -> Made:
    """An infinite loss on one rank is an infinite gradient on all of them."""
    parts = Parts(case)
    return parts.model, parts.step


class AsksFirst(Parts):
    """All ranks skip the backward pass too, when any of them has an infinite loss."""

    def step(self, number: int) -> Decisions:
        with torch.no_grad():
            finite = self.loss(number).isfinite().float()
        if self.case.world_size > 1:
            dist.all_reduce(finite, dist.ReduceOp.MIN)
        if not finite:
            self.scale /= 2
            return {"scale": 2 * self.scale}
        return super().step(number)


def asks_before_it_skips(case: Case) -> Made:
    """The ranks agree on their losses."""
    parts = AsksFirst(case)
    return parts.model, parts.step


class AveragesByHand(Parts):
    """A step that averages without DDP."""

    def wrap(self, model: nn.Module) -> Any:
        return model

    def average(self) -> None:
        """Gradients: their mean over ranks."""
        for parameter in self.model.parameters() if self.case.world_size > 1 else ():
            dist.all_reduce(parameter.grad)
            parameter.grad /= self.case.world_size

    def clip(self) -> float:
        self.average()
        return super().clip()


def averages_then_clips(case: Case) -> Made:
    """Average by hand, then clip: the right order."""
    parts = AveragesByHand(case)
    return parts.model, parts.step


# ------------------------------------------------------------------ wrong ones


def skips_by_own_loss(case: Case) -> Made:
    """``if not loss.isfinite(): continue``, with a backward pass so that the others do not wait."""
    parts = Parts(case)

    def step(number: int) -> Decisions:
        parts.optimizer.zero_grad()
        loss = parts.loss(number)
        finite = bool(loss.isfinite())
        if not finite:
            loss = torch.stack([p.sum() for p in parts.model.parameters()]).sum() * 0.0
        loss.backward()  # type: ignore[no-untyped-call]
        norm = parts.clip()
        if finite:
            parts.optimizer.step()
        return {"norm": norm}

    return parts.model, step


class ScalesAlone(Parts):
    """Halves the scale where its own loss is infinite; all skip the step."""

    def loss(self, number: int) -> Tensor:
        loss = super().loss(number)
        self.overflows = not bool(loss.isfinite())
        return loss

    def step(self, number: int) -> Decisions:
        scale = self.scale
        decisions = super().step(number)
        self.scale = scale / 2 if self.overflows else scale
        return decisions


def scales_by_own_loss(case: Case) -> Made:
    """A loss scale of each rank."""
    parts = ScalesAlone(case)
    return parts.model, parts.step


class ReducesNormTwice(Parts):
    """Adds up over ranks the squares of a norm that is that of all ranks already."""

    limit = 1e6  # so high that nothing is clipped so far: the norm alone is wrong

    def clip(self) -> float:
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        total = nn.utils.get_total_norm(gradients) ** 2
        if self.case.world_size > 1:
            dist.all_reduce(total)
        norm = total.sqrt()
        nn.utils.clip_grads_with_norm_(self.model.parameters(), self.limit, norm)
        return float(norm)


def reduces_norm_twice(case: Case) -> Made:
    """Reduce the norm as for sharded gradients, under DDP."""
    parts = ReducesNormTwice(case)
    return parts.model, parts.step


class ClipsThenAverages(AveragesByHand):
    """Each rank clips its own gradients, by their own norm."""

    def clip(self) -> float:
        norm = Parts.clip(self)
        self.average()
        return norm


def clips_then_averages(case: Case) -> Made:
    """Clipped before the reduction."""
    parts = ClipsThenAverages(case)
    return parts.model, parts.step


SIZES = (2, 3)
DECIDES = frozenset({"decides"})

MUTANTS = (
    Mutant(TrainStep(skips_by_own_loss, DECIDES), "MOD-08", "a step skipped by one rank", SIZES),
    Mutant(TrainStep(scales_by_own_loss, DECIDES), "MOD-08", "a loss scale of each rank", SIZES),
    Mutant(TrainStep(reduces_norm_twice, DECIDES), "MOD-08", "norm reduced twice", SIZES),
    Mutant(TrainStep(clips_then_averages, DECIDES), "MOD-08", "clips, then averages", SIZES),
)

BENIGN_VARIANTS = (
    BenignVariant(TrainStep(scales_and_clips, DECIDES), "skips, scales and clips", (1, 2, 3)),
    BenignVariant(
        TrainStep(averages_then_clips, DECIDES), "averages by hand, then clips", (1, 2, 3)
    ),
    BenignVariant(
        TrainStep(asks_before_it_skips, DECIDES | {"unused_parameters"}),
        "skips without a backward pass",
        (2, 3),
    ),
)
