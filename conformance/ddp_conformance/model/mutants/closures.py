"""MOD-02: optimizer steps that compute their gradients in a closure."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import LBFGS, SGD, Optimizer

from ddp_conformance.framework.case import Case
from ddp_conformance.framework.mutants import BenignVariant, Mutant
from ddp_conformance.model.mutants.step_mutants import (
    RATE,
    TWO,
    Made,
    SmallNet,
    Step,
    batch_of,
    share,
    summed_loss,
    wrapped,
)
from ddp_conformance.model.subjects import TrainStep


def closing(case: Case, model: nn.Module, optimizer: Optimizer, *, scale: float = 1.0) -> Step:
    """Step as Lightning does: the optimizer calls for its gradients, which nothing had before."""

    def step(number: int) -> None:
        points, targets = batch_of(number, share(case))

        def closure() -> Any:
            optimizer.zero_grad()
            loss = summed_loss(model, points, targets) * scale / len(share(case))
            loss.backward()
            by_hand(case, model)
            return loss

        optimizer.step(closure)
        optimizer.zero_grad()

    return step


def by_hand(case: Case, model: nn.Module) -> None:
    """The mean over ranks, where no wrapper takes it."""
    if case.world_size > 1 and type(model) is SmallNet:
        for parameter in model.parameters():
            gradient: Any = parameter.grad
            dist.all_reduce(gradient)
            gradient.div_(case.world_size)


def with_closure(case: Case) -> Made:
    """SGD over DDP."""
    model = wrapped(case, SmallNet())
    return model, closing(case, model, SGD(model.parameters(), RATE))


def with_named_closure(case: Case) -> Made:
    """Given by its name, and reduced by hand."""
    torch.manual_seed(0)
    model = SmallNet()
    optimizer = SGD(model.parameters(), RATE)
    step = optimizer.step
    vars(optimizer)["step"] = lambda closure: step(closure=closure)
    return model, closing(case, model, optimizer)


def searching(case: Case) -> Made:
    """LBFGS, which calls for gradients several times in a step."""
    model = wrapped(case, SmallNet())
    return model, closing(case, model, LBFGS(model.parameters(), RATE, max_iter=4))


def wrong_in_closure(case: Case) -> Made:
    """The loss multiplied by the number of ranks, as where gradients are summed."""
    model = wrapped(case, SmallNet())
    scale = float(case.world_size)
    return model, closing(case, model, SGD(model.parameters(), RATE), scale=scale)


def searches_apart(case: Case) -> Made:
    """LBFGS past the wrapper: each rank follows the gradients of its own samples."""
    model = wrapped(case, SmallNet())
    bare = getattr(model, "module", model)
    optimizer = LBFGS(model.parameters(), RATE, max_iter=4)
    return model, closing(case, nn.Sequential(bare), optimizer)


MUTANTS = (
    Mutant(TrainStep(wrong_in_closure), "MOD-02", "a loss times the ranks, in a closure", TWO),
    Mutant(TrainStep(searches_apart), "MOD-02", "LBFGS past the wrapper", TWO),
)

BENIGN_VARIANTS = (
    BenignVariant(TrainStep(with_closure), "gradients made by the step itself", TWO),
    BenignVariant(TrainStep(with_named_closure), "a closure given by name", TWO),
    BenignVariant(
        TrainStep(searching),
        "several gradients in a step",
        TWO,
        undecided=frozenset({"MOD-11"}),
    ),
)
