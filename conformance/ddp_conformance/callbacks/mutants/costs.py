"""CBK-05: logging that costs more collectives than it states."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from ddp_conformance.callbacks.mutants.hook_mutants import local_loss, mean_loss, reduce_gradient
from ddp_conformance.callbacks.subjects import Callback
from ddp_conformance.framework.case import Case
from ddp_conformance.framework.mutants import BenignVariant, Mutant
from ddp_conformance.metrics.mutants.reductions import Mean, pooled
from ddp_conformance.metrics.subjects import Metric

Steps: TypeAlias = Iterator[dict[str, Any] | None]


def steps_of(case: Case) -> range:
    """One for each sample of the rank that has the most."""
    return range(-(-case.size // case.world_size))


# ------------------------------------------------------------------ loops


def reduces_each_loss(case: Case) -> Steps:
    """``log(sync_dist=True)`` in each step: a mean beside each gradient."""
    for step in steps_of(case):
        reduce_gradient(case)
        mean_loss(case, step)
        yield None


def gathers_objects_in_tenth(case: Case) -> Steps:
    """A dictionary of each rank in every tenth step: two collectives, of which one was counted."""
    for step in steps_of(case):
        reduce_gradient(case)
        if step % 10 == 9:
            losses: list[Any] = [None] * case.world_size
            dist.all_gather_object(losses, {"loss": float(local_loss(case, step))})
        yield None


def reduces_each_of_some(case: Case) -> Steps:
    """One reduction for each logged value, where one for all of them is stated."""
    for step in steps_of(case):
        reduce_gradient(case)
        for value in (local_loss(case, step), torch.tensor(1.0)):
            dist.all_reduce(value)
        yield None


def keeps_losses(case: Case) -> Steps:
    """Sums of each rank's own, which are reduced when the loop is over."""
    total = torch.zeros(())
    for step in steps_of(case):
        reduce_gradient(case)
        total += local_loss(case, step)
        yield None
    dist.all_reduce(total)


def reduces_some_at_once(case: Case) -> Steps:
    """All that is logged in one tensor, every fifth step."""
    for step in steps_of(case):
        reduce_gradient(case)
        if step % 5 == 4:
            dist.all_reduce(torch.stack([local_loss(case, step), torch.tensor(1.0)]))
        yield None


def agrees_in_first(case: Case) -> Steps:
    """Ranks agree on a name, and make a group, before they begin."""
    names = [f"run-{case.rank}"]
    dist.broadcast_object_list(names, src=0)
    group = dist.new_group()
    for _ in steps_of(case):
        reduce_gradient(case)
        yield None
    dist.destroy_process_group(group)


# ------------------------------------------------------------------ metrics


class PoolsEachBatch(Mean):
    """``dist_sync_on_step``: the value of each batch is that of all ranks."""

    def update(self, values: Tensor) -> None:
        """Add a batch, and pool its sum for the progress bar."""
        super().update(values)
        self.shown = pooled(values.double().sum())


class PoolsWhenFull(Mean):
    """Pools in every tenth batch."""

    def __init__(self, case: Case) -> None:
        self.batches = 0
        super().__init__(case)

    def update(self, values: Tensor) -> None:
        """Add a batch; in every tenth one also the pooled sum so far is taken."""
        super().update(values)
        self.batches += 1
        if self.batches % 10 == 0:
            self.shown = pooled(self.total)


class PoolsAtTheEnd(Mean):
    """A collective when it is computed, and none before."""


def loop(make: Callable[[Case], Steps], collectives: int) -> Callback:
    """A loop that states what a step costs."""
    return Callback(make, {"states_collectives"}, collectives=collectives)


def metric(make: Callable[[Case], Mean]) -> Metric:
    """A metric that states that a batch costs nothing."""
    return Metric(make, {"states_collectives"}, collectives=0)


MUTANTS = (
    Mutant(loop(reduces_each_loss, 1), "CBK-05", "a mean in each step"),
    Mutant(loop(gathers_objects_in_tenth, 2), "CBK-05", "objects in each tenth step"),
    Mutant(loop(reduces_each_of_some, 2), "CBK-05", "a reduction for each value"),
    Mutant(metric(PoolsEachBatch), "CBK-05", "a metric that pools each batch"),
    Mutant(metric(PoolsWhenFull), "CBK-05", "a metric that pools each tenth batch"),
)

BENIGN_VARIANTS = (
    BenignVariant(loop(keeps_losses, 1), "reduced after the last step"),
    BenignVariant(loop(reduces_some_at_once, 2), "two values in one reduction"),
    BenignVariant(loop(agrees_in_first, 1), "a broadcast of objects and a group before the first"),
    BenignVariant(metric(PoolsAtTheEnd), "pooled when it is computed"),
)
