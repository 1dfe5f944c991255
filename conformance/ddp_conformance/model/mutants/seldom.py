"""MOD-02 where nothing is wrong in most steps, and steps without an optimizer."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.optim import Adam

from ddp_conformance.framework.case import Case
from ddp_conformance.framework.mutants import BenignVariant, Mutant
from ddp_conformance.model.mutants.step_mutants import (
    FEATURES,
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

# ------------------------------------------------------------------ seldom


def adam(case: Case, *, every: int = 0) -> Made:
    """Adam over DDP; every so many steps the loss is multiplied by the number of ranks."""
    model = wrapped(case, SmallNet())
    optimizer = Adam(model.parameters(), RATE)

    def step(number: int) -> None:
        optimizer.zero_grad()
        loss = summed_loss(model, *batch_of(number, share(case))) * case.world_size / case.size
        (loss * (case.world_size if every and number % every == every - 1 else 1)).backward()
        optimizer.step()

    return model, step


def steps_with_adam(case: Case) -> Made:
    """After some steps rounding errors alone make its parameters differ from one process's."""
    return adam(case)


def sums_every_third(case: Case) -> Made:
    """Right in the first two steps."""
    return adam(case, every=3)


def sums_every_tenth(case: Case) -> Made:
    """Wrong in every tenth step, as if a schedule of the loss restarted."""
    return adam(case, every=10)


def two_batches(case: Case) -> Made:
    """Has data for two steps only."""
    model, step = adam(case)
    batches = [0, 1]
    return model, lambda number: step(batches[number])


# ------------------------------------------------------------------ by hand


def by_hand(case: Case, model: Any, *, mean: bool = False, clears: bool = False) -> Step:
    """SGD in a line; ``mean``: over ranks too; ``clears`` its gradients afterwards."""

    def step(number: int) -> None:
        model.zero_grad()
        points, targets = batch_of(number, share(case))
        loss: Any = nn.functional.mse_loss(model(points), targets)
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                if mean and case.world_size > 1:
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= case.world_size
                parameter -= RATE * parameter.grad
        if clears:
            model.zero_grad()

    return step


def steps_by_hand(case: Case) -> Made:
    """DDP reduces."""
    model = wrapped(case, SmallNet())
    return model, by_hand(case, model)


def clears_by_hand(case: Case) -> Made:
    """Nothing is left when the step is over."""
    model = wrapped(case, SmallNet())
    return model, by_hand(case, model, clears=True)


def reduces_and_steps_by_hand(case: Case) -> Made:
    """Neither DDP nor an optimizer."""
    torch.manual_seed(0)
    model = SmallNet()
    return model, by_hand(case, model, mean=True)


def steps_by_hand_past_wrapper(case: Case) -> Made:
    """Nothing is reduced."""
    model = wrapped(case, SmallNet())
    return model, by_hand(case, getattr(model, "module", model))


def reduces_by_hand_and_clears(case: Case) -> Made:
    """Right, but its gradients cannot be seen: undecided."""
    torch.manual_seed(0)
    model = SmallNet()
    return model, by_hand(case, model, mean=True, clears=True)


# ------------------------------------------------------------------ batch statistics


def normalised() -> nn.Sequential:
    """A BatchNorm between two layers, as in every network for images."""
    norm = nn.BatchNorm1d(FEATURES)
    return nn.Sequential(nn.Linear(FEATURES, FEATURES), norm, nn.ReLU(), nn.Linear(FEATURES, 1))


def normalises_by_rank(case: Case) -> Made:
    """Plain DDP; each rank normalises by its own samples."""
    model = wrapped(case, normalised())
    return model, stepping(case, model)


def stepping(case: Case, model: Any) -> Step:
    """A step as of :func:`adam`, with any model."""
    optimizer = Adam(model.parameters(), RATE)

    def step(number: int) -> None:
        optimizer.zero_grad()
        (summed_loss(model, *batch_of(number, share(case))) / len(share(case))).backward()
        optimizer.step()

    return step


def normalises_past_wrapper(case: Case) -> Made:
    """``ddp.module(x)``: statistics of each rank, and gradients of each rank."""
    model = wrapped(case, normalised())
    return model, stepping(case, getattr(model, "module", model))


def frozen_statistics(case: Case) -> Made:
    """BatchNorm in evaluation mode normalises by what it has learned: one process does the same."""
    torch.manual_seed(0)
    bare = normalised()
    for module in bare.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.eval()
    model = wrapped(case, bare)
    return model, stepping(case, model)


def recomputed(case: Case) -> Made:
    """torch's activation checkpointing of one layer: in ``named_parameters`` of the model it has a
    name of its own, in ``state_dict`` it has none."""
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(FEATURES).eval()
    layer = checkpoint_wrapper(nn.Sequential(nn.Linear(FEATURES, FEATURES), norm))
    model = wrapped(case, nn.Sequential(layer, nn.ReLU(), nn.Linear(FEATURES, 1)))
    return model, stepping(case, model)


STATISTICS = frozenset({"batch_statistics"})
REASON = "as each rank has enough samples"

NO_OPTIMIZER = frozenset({"MOD-11"})
"""What cannot be judged without one."""

MUTANTS = (
    Mutant(TrainStep(sums_every_third), "MOD-02", "a sum over ranks in each third step", TWO),
    Mutant(TrainStep(sums_every_tenth), "MOD-02", "a sum over ranks in each tenth step", TWO),
    Mutant(TrainStep(steps_by_hand_past_wrapper), "MOD-02", "by hand, past the wrapper", TWO),
    Mutant(
        TrainStep(normalises_past_wrapper, STATISTICS, reason=REASON),
        "MOD-01",
        "past the wrapper, with batch statistics",
        TWO,
    ),
)

BENIGN_VARIANTS = (
    BenignVariant(
        TrainStep(steps_with_adam, {"uneven"}), "Adam, with parameters that drift apart", (1, 2)
    ),
    BenignVariant(TrainStep(two_batches, steps=2), "data for two steps", (1, 2)),
    BenignVariant(TrainStep(steps_by_hand), "no optimizer", (1, 2), undecided=NO_OPTIMIZER),
    BenignVariant(
        TrainStep(clears_by_hand),
        "no optimizer, and gradients that are gone",
        (1, 2),
        undecided=NO_OPTIMIZER,
    ),
    BenignVariant(
        TrainStep(reduces_and_steps_by_hand),
        "no optimizer and no wrapper",
        (1, 2),
        undecided=NO_OPTIMIZER,
    ),
    BenignVariant(TrainStep(frozen_statistics), "BatchNorm in evaluation mode", (1, 2)),
    BenignVariant(TrainStep(recomputed), "activation checkpointing of one layer", (1, 2)),
    BenignVariant(
        TrainStep(normalises_by_rank, STATISTICS, reason=REASON),
        "BatchNorm of each rank, which is meant",
        (1, 2),
    ),
)
