"""MOD-01 to MOD-07: models and steps with the defects that they have in the wild."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

from ddp_conformance.framework.case import Case
from ddp_conformance.framework.mutants import BenignVariant, Mutant
from ddp_conformance.model.subjects import TrainStep

FEATURES, RATE = 3, 0.1

Step = Callable[[int], None]
Made = tuple[nn.Module, Step]


class SmallNet(nn.Module):
    """Two layers with activations that are changed in place."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(FEATURES, 4)
        self.leave = nn.Linear(4, 1)
        self.register_buffer("scale", torch.ones(1))

    def forward(self, points: Tensor) -> Tensor:
        hidden = self.enter(points).add_(0.1).clamp_(-4.0, 4.0)
        hidden[:, 0] = hidden[:, 0] * self.scale
        out: Tensor = self.leave(hidden.relu_())
        return out


def batch_of(number: int, samples: range) -> tuple[Tensor, Tensor]:
    """Points and targets, a function of the batch's number and of each sample's."""
    seeds = torch.tensor([[float(100 * number + sample + 1)] for sample in samples])
    points = torch.sin(seeds * torch.arange(1.0, FEATURES + 1))
    return points, points.sum(1, keepdim=True)


def share(case: Case) -> range:
    """This rank's samples: those in turn."""
    return range(case.rank, case.size, case.world_size)


def wrapped(case: Case, model: nn.Module, **options: Any) -> Any:
    """The model in DDP, where there are several ranks."""
    return DistributedDataParallel(model, **options) if case.world_size > 1 else model


def stepping(case: Case, model: Any, scale: float = 1.0) -> Step:
    """Steps on the mean of the ranks' means, times a scale."""
    optimizer = SGD(model.parameters(), RATE)

    def step(number: int) -> None:
        points, targets = batch_of(number, share(case))
        optimizer.zero_grad()
        loss: Any = nn.functional.mse_loss(model(points), targets) * scale
        loss.backward()
        optimizer.step()

    return step


def summed_loss(model: Any, points: Tensor, targets: Tensor) -> Any:
    """The sum over samples; the caller divides it by their number."""
    return nn.functional.mse_loss(model(points), targets, reduction="sum")


# ------------------------------------------------------------------ right ones


def plain(case: Case) -> Made:
    """DDP over a model that changes its activations in place."""
    model = wrapped(case, SmallNet())
    return model, stepping(case, model)


def weighted(case: Case) -> Made:
    """Ranks with different numbers of samples, each sample with the same weight."""
    model = wrapped(case, SmallNet())
    optimizer = SGD(model.parameters(), RATE)

    def step(number: int) -> None:
        optimizer.zero_grad()
        loss = summed_loss(model, *batch_of(number, share(case)))
        (loss * case.world_size / case.size).backward()
        optimizer.step()

    return model, step


def accumulating(
    case: Case, closes: Callable[[int], bool] = lambda place: (place + 1) % 2 == 0
) -> Made:
    """Two halves of a share, of which the second one's pass reduces the gradients."""
    model = wrapped(case, SmallNet())
    optimizer = SGD(model.parameters(), RATE)

    def micro_step(place: int, points: Tensor, targets: Tensor) -> None:
        if hasattr(model, "require_backward_grad_sync"):
            model.require_backward_grad_sync = closes(place)
        (summed_loss(model, points, targets) / len(share(case))).backward()

    def step(number: int) -> None:
        optimizer.zero_grad()
        points, targets = batch_of(number, share(case))
        for place, parts in enumerate(zip(points.chunk(2), targets.chunk(2), strict=True)):
            micro_step(place, *parts)
        optimizer.step()

    return model, step


class TwoHeads(nn.Module):
    """A head for points whose first value is positive, and another one for the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(FEATURES, 1) for _ in range(2))

    def forward(self, points: Tensor, kinds: Tensor) -> Tensor:
        out = points.new_zeros(len(points), 1)
        for number, head in enumerate(self.heads):
            chosen = kinds == number
            if chosen.any():
                out[chosen] = head(points[chosen])
        return out


def branching(case: Case, **options: Any) -> Made:
    """Even samples go through one head and odd ones through the other: on two ranks, one each."""
    model = wrapped(case, TwoHeads(), **options)
    optimizer = SGD(model.parameters(), RATE)

    def step(number: int) -> None:
        optimizer.zero_grad()
        points, targets = batch_of(number, share(case))
        kinds = torch.tensor([sample % 2 for sample in share(case)])
        loss: Any = nn.functional.mse_loss(model(points, kinds), targets)
        loss.backward()
        optimizer.step()

    return model, step


def branching_declared(case: Case) -> Made:
    """DDP looks for the parameters that a pass leaves out."""
    return branching(case, find_unused_parameters=True)


# ------------------------------------------------------------------ wrong ones


def replaces_parameter(case: Case) -> Made:
    """A layer is replaced after the wrap; DDP's hooks are on the old one."""
    model = wrapped(case, SmallNet())
    bare = getattr(model, "module", model)
    bare.leave = nn.Linear(4, 1)
    return model, stepping(case, model)


def goes_past_wrapper(case: Case) -> Made:
    """``ddp.module(x)`` in place of ``ddp(x)``: nothing reduces the gradients."""
    model = wrapped(case, SmallNet())
    bare = getattr(model, "module", model)
    return model, stepping(case, bare)


class WritesByRank(SmallNet):
    """Adds noise to the weights themselves, each rank its own."""

    def forward(self, points: Tensor) -> Tensor:
        rank = dist.get_rank() if dist.is_initialized() else 0
        self.leave.weight.data.mul_(1.0 + 0.1 * rank)
        return super().forward(points)


def writes_by_rank(case: Case) -> Made:
    """Parameters that drift apart by the rank."""
    model = wrapped(case, WritesByRank())
    return model, stepping(case, model)


class Renormalizes(SmallNet):
    """Scales its weights to length 1 in every forward pass, in place."""

    def forward(self, points: Tensor) -> Tensor:
        self.leave.weight.data.div_(self.leave.weight.data.norm())
        return super().forward(points)


def renormalizes(case: Case) -> Made:
    """Parameters that are written in the same way on all ranks."""
    model = wrapped(case, Renormalizes())
    return model, stepping(case, model)


def means_of_means(case: Case) -> Made:
    """Each rank takes the mean of its samples, however many they are."""
    model = wrapped(case, SmallNet())
    return model, stepping(case, model)


def sums_over_ranks(case: Case) -> Made:
    """Gradients are added up by hand and not divided by the number of ranks."""
    torch.manual_seed(0)
    model = SmallNet()
    optimizer = SGD(model.parameters(), RATE)

    def step(number: int) -> None:
        optimizer.zero_grad()
        points, targets = batch_of(number, share(case))
        loss: Any = nn.functional.mse_loss(model(points), targets)
        loss.backward()
        for parameter in model.parameters() if case.world_size > 1 else ():
            dist.all_reduce(parameter.grad)
        optimizer.step()

    return model, step


def starts_apart(case: Case) -> Made:
    """``init_sync=False``: DDP does not make the ranks' parameters equal."""
    model = wrapped(case, SmallNet(), init_sync=False)
    return model, stepping(case, model)


class Alternates(SmallNet):
    """Leaves its first layer out every other time."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, points: Tensor) -> Tensor:
        self.calls += 1
        if self.calls % 2:
            return super().forward(points)
        out: Tensor = self.leave(points.new_ones(len(points), 4))
        return out


def alternates_under_static_graph(case: Case) -> Made:
    """What DDP learned of the graph in the first step does not hold in the second."""
    model = wrapped(case, Alternates(), static_graph=True)
    return model, stepping(case, model)


def reduces_too_early(case: Case) -> Made:
    """``i % k`` where ``(i + 1) % k`` is meant: the first pass reduces, and the last does not."""
    return accumulating(case, lambda i: i % 2 == 0)


TWO = (2,)
UNUSED = frozenset({"unused_parameters"})

MUTANTS = (
    Mutant(TrainStep(replaces_parameter), "MOD-01", "a parameter replaced after the wrap", TWO),
    Mutant(TrainStep(goes_past_wrapper), "MOD-01", "ddp.module(x)", TWO),
    Mutant(
        TrainStep(writes_by_rank, name="drifts_by_rank"),
        "MOD-01",
        "writes by rank",
        TWO,
    ),
    Mutant(TrainStep(means_of_means, {"uneven"}), "MOD-02", "mean of 4 and of 3 samples", TWO),
    Mutant(TrainStep(sums_over_ranks), "MOD-02", "no division by the world size", TWO),
    Mutant(TrainStep(starts_apart), "MOD-03", "init_sync=False", TWO),
    Mutant(TrainStep(branching), "MOD-05", "a branch that depends on the rank", TWO),
    Mutant(TrainStep(alternates_under_static_graph, UNUSED), "MOD-05", "a graph that changes", TWO),
    Mutant(TrainStep(writes_by_rank), "MOD-06", ".data.mul_ by rank", TWO),
    Mutant(TrainStep(renormalizes), "MOD-06", ".data.div_ on all ranks", TWO),
    Mutant(TrainStep(reduces_too_early, {"accumulates"}), "MOD-07", "i % k", TWO),
)

BENIGN_VARIANTS = (
    BenignVariant(
        TrainStep(plain), "relu_, add_, clamp_ and index assignment on activations", (1, 2)
    ),
    BenignVariant(TrainStep(weighted, {"uneven"}), "unequal shares, weighted by samples", (1, 2)),
    BenignVariant(TrainStep(accumulating, {"accumulates"}), "reduced in the last pass", (1, 2)),
    BenignVariant(TrainStep(branching_declared, UNUSED), "a branch by rank, declared to DDP", (2,)),
)
