"""MOD-02, MOD-10 and MOD-11: gradients and updates that are made elsewhere than before one step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.optim import SGD, AdamW, Optimizer, SparseAdam

from ddp_conformance.framework.case import Case
from ddp_conformance.framework.mutants import BenignVariant, Mutant
from ddp_conformance.model.mutants.sharded import stepping_with
from ddp_conformance.model.mutants.step_mutants import Made, SmallNet, batch_of, share, wrapped
from ddp_conformance.model.subjects import TrainStep

RATE = 1e-2


def reduce_all(optimizer: Optimizer, case: Case, divisor: int) -> None:
    """Sum gradients over ranks, and divide them."""
    for group in optimizer.param_groups if case.world_size > 1 else ():
        for parameter in group["params"]:
            dist.all_reduce(parameter.grad)
            parameter.grad /= divisor


class ReducingSGD(SGD):
    """Reduces in its own step, as Horovod's optimizer does, and then steps as SGD."""

    def __init__(self, parameters: Iterable[Tensor], case: Case, divisor: int) -> None:
        super().__init__(parameters, RATE, momentum=0.9)
        self.case, self.divisor = case, divisor

    def step(self, closure: Any = None) -> Any:
        """Reduce, and step."""
        reduce_all(self, self.case, self.divisor)
        return super().step(closure)


def seeded() -> SmallNet:
    """One that is the same on all ranks without a wrapper."""
    torch.manual_seed(3)
    return SmallNet()


def averaged_in_its_step(case: Case) -> Made:
    """No wrapper: the optimizer averages."""
    model = seeded()
    return stepping_with(
        case, model, ReducingSGD(model.parameters(), case, divisor=case.world_size)
    )


def summed_in_its_step(case: Case) -> Made:
    """The mean of each rank's samples, summed."""
    model = seeded()
    return stepping_with(case, model, ReducingSGD(model.parameters(), case, divisor=1))


def thawed(case: Case, model: Any, bare: SmallNet) -> Made:
    """A model whose first layer is frozen until the fifth step."""
    optimizer = AdamW(model.parameters(), RATE)

    def step(number: int) -> None:
        bare.enter.requires_grad_(number >= 5)
        optimizer.zero_grad()
        points, targets = batch_of(number, share(case))
        loss: Any = nn.functional.mse_loss(model(points), targets)
        loss.backward()
        optimizer.step()

    return model, step


def frozen_after_wrapping(case: Case) -> Made:
    """DDP knows the layer, and looks for parameters without a gradient."""
    bare = seeded()
    model = wrapped(case, bare, find_unused_parameters=True)
    bare.enter.requires_grad_(False)
    return thawed(case, model, bare)


def frozen_before_wrapping(case: Case) -> Made:
    """DDP reduces what was trained when it was made."""
    bare = seeded()
    bare.enter.requires_grad_(False)
    return thawed(case, wrapped(case, bare), bare)


def steps_in_backward(case: Case) -> Made:
    """Each parameter's hook steps an optimizer of its own: under FSDP2 in another order."""
    model = seeded()
    if case.world_size > 1:
        fully_shard(model, mesh=init_device_mesh("cpu", (case.world_size,)))
    own = {parameter: AdamW([parameter], RATE) for parameter in model.parameters()}

    def hook(parameter: Tensor) -> None:
        own[parameter].step()  # type: ignore[index]
        own[parameter].zero_grad()  # type: ignore[index]

    for parameter in own:
        parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]

    def step(number: int) -> None:
        points, targets = batch_of(number, share(case))
        loss: Any = nn.functional.mse_loss(model(points), targets)
        loss.backward()

    return model, step


class SparseNet(nn.Module):
    """A table of which each batch needs some rows."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8, 3, sparse=True)

    def forward(self, points: Tensor) -> Tensor:
        out: Tensor = self.table((points[:, 0] * 8).long().abs() % 8).sum(1, keepdim=True)
        return out


def sparse_gradients(case: Case) -> Made:
    """DDP reduces them as they are."""
    torch.manual_seed(3)
    model = wrapped(case, SparseNet())
    return stepping_with(case, model, SparseAdam(model.parameters(), RATE))


class DealtMomentum(Optimizer):
    """Each rank updates some parameters and has their states, as Muon's first version does."""

    def __init__(self, parameters: Iterable[Tensor], case: Case) -> None:
        super().__init__(parameters, {"lr": RATE})
        self.case = case

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update, and send what others have not updated."""
        for group in self.param_groups:
            for place, parameter in enumerate(group["params"]):
                owner = place % self.case.world_size
                if owner == self.case.rank:
                    state = self.state[parameter]
                    momentum = state.setdefault("momentum", torch.zeros_like(parameter))
                    momentum.lerp_(parameter.grad, 0.1)
                    parameter.sub_(momentum, alpha=RATE)
                if self.case.world_size > 1:
                    dist.broadcast(parameter, owner)


def updates_dealt_out(case: Case) -> Made:
    """DDP reduces."""
    model = wrapped(case, SmallNet())
    return stepping_with(case, model, DealtMomentum(model.parameters(), case))


TWO = (2,)

MUTANTS = (
    Mutant(TrainStep(summed_in_its_step), "MOD-02", "an optimizer that sums ranks' means", (2, 3)),
    Mutant(
        TrainStep(frozen_before_wrapping, {"unused_parameters"}),
        "MOD-02",
        "a layer unfrozen that DDP did not know",
        (2, 3),
    ),
)

BENIGN_VARIANTS = (
    BenignVariant(
        TrainStep(averaged_in_its_step, {"reduces_once"}), "reduces in the optimizer's step", TWO
    ),
    BenignVariant(
        TrainStep(frozen_after_wrapping, {"unused_parameters"}), "a layer unfrozen later", TWO
    ),
    BenignVariant(TrainStep(steps_in_backward), "optimizers in hooks, in another order", TWO),
    BenignVariant(TrainStep(sparse_gradients), "gradients of some rows", TWO),
    BenignVariant(TrainStep(updates_dealt_out), "states on the ranks that update", TWO),
)
