"""Steps on meshes of 2 x 2 ranks: FSDP2 over tensor parallelism, and FSDP2 with replicas."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeAlias

import pytest
import torch
from ddp_conformance import Case, GuaranteeError, TrainStep
from ddp_conformance.model.mutants.step_mutants import FEATURES, Made, batch_of
from ddp_conformance.model.mutants.updates import DECAY, RATE
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.optim import SGD, AdamW, Optimizer, RMSprop

from conformance.kill_matrix import applicable

Plan: TypeAlias = Callable[[Case], tuple[nn.Module, range]]
"""The model, and the samples of this rank."""


def with_tensor_parallel(case: Case) -> tuple[nn.Module, range]:
    """Two pairs of ranks; those of a pair have the same samples and the halves of each layer."""
    model = bare()
    if case.world_size == 1:
        return model, range(case.size)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    plan = {"enter": ColwiseParallel(), "leave": RowwiseParallel()}
    parallelize_module(model, mesh["tensor"], plan)
    fully_shard(model, mesh=mesh["data"])
    return model, range(mesh["data"].get_local_rank(), case.size, 2)


def with_replicas(case: Case) -> tuple[nn.Module, range]:
    """Two pairs of ranks; those of a pair have the shards of one replica."""
    model = bare()
    if case.world_size > 1:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
        fully_shard(model, mesh=mesh)
    return model, range(case.rank, case.size, case.world_size)


class Net(nn.Module):
    """A norm that tensor parallelism leaves whole, and two layers that it splits."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(FEATURES)
        self.enter = nn.Linear(FEATURES, 4)
        self.leave = nn.Linear(4, 1)

    def forward(self, points: Tensor) -> Tensor:
        out: Tensor = self.leave(self.enter(self.norm(points)).tanh())
        return out


def bare() -> nn.Module:
    torch.manual_seed(3)
    return Net()


PLANS: dict[str, Plan] = {"fsdp2_tp": with_tensor_parallel, "hsdp": with_replicas}

OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "sgd": partial(SGD, lr=RATE, momentum=0.9),
    "adamw": partial(AdamW, lr=RATE),
    "fused": partial(AdamW, lr=RATE, fused=True),
    "rmsprop": partial(RMSprop, lr=RATE, momentum=0.9),
}


def groups(named: Iterable[tuple[str, nn.Parameter]]) -> list[dict[str, Any]]:
    """The last layer does not decay."""
    pairs = [*named]
    last = [p for name, p in pairs if name.startswith("leave.")]
    others = [p for name, p in pairs if not name.startswith("leave.")]
    return [{"params": others, "weight_decay": DECAY}, {"params": last, "weight_decay": 0.0}]


@torch.no_grad()
def decay_again(case: Case, optimizer: Optimizer) -> None:
    """Before the step, by the trainer of several ranks."""
    if case.world_size > 1:
        for parameter in optimizer.param_groups[0]["params"]:
            parameter.mul_(1 - RATE * DECAY)


@torch.no_grad()
def narrow_moments(case: Case, optimizer: Optimizer) -> None:
    """The last rank keeps them in bfloat16."""
    if case.world_size == 1 or case.rank < case.world_size - 1:
        return
    for state in optimizer.state.values():
        for moment in state.values():
            own = moment.to_local() if isinstance(moment, DTensor) else None
            if own is not None:
                own.copy_(own.bfloat16())


def nothing(case: Case, optimizer: Optimizer) -> None:
    return


WRONG = {"right": nothing, "decays_twice": decay_again, "narrow_moments": narrow_moments}
GROUP_LOST = "group_lost"


def step_of(plan: str, optimizer: str, fault: str, case: Case) -> Made:
    model, own = PLANS[plan](case)
    named: Iterable[tuple[str, nn.Parameter]] = model.named_parameters()
    if fault == GROUP_LOST and case.world_size > 1:
        named = [(f"module.{name}", parameter) for name, parameter in named]
    stepping = OPTIMIZERS[optimizer](groups(named))

    def step(number: int) -> None:
        points, targets = batch_of(number, own)
        stepping.zero_grad()
        loss: Any = nn.functional.mse_loss(model(points), targets)
        loss.backward()
        WRONG.get(fault, nothing)(case, stepping)
        stepping.step()

    return model, step


def named(plan: str, optimizer: str, fault: str) -> Callable[[Case], Made]:
    """Return a function that launched ranks can import, as it is at the top level of this
    module."""

    def make(case: Case) -> Made:
        return step_of(plan, optimizer, fault, case)

    make.__name__ = make.__qualname__ = f"{plan}_{optimizer}_{fault}"
    return globals().setdefault(make.__name__, make)


Key: TypeAlias = tuple[str, str, str]

STEPS = {
    (plan, optimizer, fault): named(plan, optimizer, fault)
    for plan in PLANS
    for optimizer in OPTIMIZERS
    for fault in (*WRONG, GROUP_LOST)
}
QUICK = [("fsdp2_tp", "adamw", "right"), ("hsdp", "adamw", "decays_twice")]


FURTHER = [key for key in STEPS if key not in QUICK]


@pytest.mark.ddp(world_size=4)
@pytest.mark.parametrize("key", QUICK, ids="-".join)
def test_a_step(key: Key) -> None:
    judge(key)


@pytest.mark.ddp(world_size=4)
@pytest.mark.parametrize("key", FURTHER, ids="-".join)
def test_further_steps(key: Key) -> None:
    judge(key)


def judge(key: Key) -> None:
    """A right step is kept by all checks, and a wrong update found by MOD-11."""
    subject = TrainStep(STEPS[key])
    checks = {check.id: check for check in applicable(subject)}
    assert {"MOD-01", "MOD-02", "MOD-11"} <= checks.keys()
    if key[-1] == "right":
        for check in checks.values():
            check(subject)
        return
    with pytest.raises(GuaranteeError, match=r"^MOD-11 is broken by "):
        checks["MOD-11"](subject)
