"""MOD-02: steps with parameters or optimizer states that ranks share out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.optim import SGD, Optimizer

from ddp_conformance.framework.case import Case
from ddp_conformance.framework.mutants import BenignVariant, Mutant
from ddp_conformance.model.mutants.step_mutants import (
    FEATURES,
    RATE,
    Made,
    SmallNet,
    batch_of,
    share,
    wrapped,
)
from ddp_conformance.model.subjects import TrainStep


def stepping_with(
    case: Case, model: Any, optimizer: Optimizer, then: Callable[[], object] = lambda: None
) -> Made:
    """Steps on the mean of the ranks' means, each followed by what is given."""

    def step(number: int) -> None:
        points, targets = batch_of(number, share(case))
        optimizer.zero_grad()
        loss: Any = nn.functional.mse_loss(model(points), targets)
        loss.backward()
        optimizer.step()
        then()

    return model, step


def dealt_out(case: Case, model: nn.Module) -> Optimizer:
    """An optimizer that keeps the states of some parameters on each rank."""
    if case.world_size == 1:
        return SGD(model.parameters(), RATE)
    # Imported late, for it scripts optimizers, of which torch itself warns.
    from torch.distributed.optim import ZeroRedundancyOptimizer

    return ZeroRedundancyOptimizer(model.parameters(), SGD, lr=RATE)


def states_dealt_out(case: Case) -> Made:
    """DDP reduces, and the optimizer sends each parameter from the rank that has its state."""
    model = wrapped(case, SmallNet())
    return stepping_with(case, model, dealt_out(case, model))


def states_without_reduction(case: Case) -> Made:
    """No DDP: the ranks' parameters are equal, each stepped with the gradients of one rank."""
    model = SmallNet()
    return stepping_with(case, model, dealt_out(case, model))


class OwnStep(SGD):
    """Does something of its own, and calls the step that it inherits."""

    def step(self, closure: Any = None) -> Any:
        """SGD's step; torch calls its hooks twice if an SGD was made before."""
        return super().step(closure)


def inherited_step(case: Case) -> Made:
    """torch calls the hooks of one step twice, as a plain SGD is made in the same process."""
    model = wrapped(case, SmallNet())
    optimizer = OwnStep(model.parameters(), RATE)
    SGD(model.parameters(), RATE)
    return stepping_with(case, model, optimizer)


def empty_shard(case: Case) -> Made:
    """One row of weights, which the first rank has all of."""
    model = nn.Linear(FEATURES, 1)
    if case.world_size > 1:
        fully_shard(model, mesh=init_device_mesh("cpu", (case.world_size,)))
    return stepping_with(case, model, SGD(model.parameters(), RATE))


TWO = (2,)

MUTANTS = (
    Mutant(TrainStep(states_without_reduction), "MOD-02", "ZeRO that nothing reduces for", TWO),
)

BENIGN_VARIANTS = (
    BenignVariant(
        TrainStep(states_dealt_out),
        "ZeRO over DDP: an optimizer in an optimizer",
        TWO,
        undecided=frozenset({"MOD-11"}),
    ),
    BenignVariant(TrainStep(inherited_step), "a step that calls the inherited one", TWO),
    BenignVariant(TrainStep(empty_shard), "a rank with an empty shard", TWO),
)
