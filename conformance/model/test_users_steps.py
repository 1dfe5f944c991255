"""Steps of users' kinds: several optimizers, checkpointed layers, sums that are divided late."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from ddp_conformance import Case, TrainStep
from ddp_conformance.framework.registry import all_checks
from ddp_conformance.framework.verdict import GuaranteeError, UndecidedError
from ddp_conformance.model.mutants.sharded import stepping_with
from ddp_conformance.model.mutants.step_mutants import (
    RATE,
    SmallNet,
    batch_of,
    share,
    stepping,
    summed_loss,
    wrapped,
)
from torch import nn
from torch.optim import SGD, AdamW, Optimizer
from torch.utils.checkpoint import checkpoint

CHECKS = {check.id: check for check in all_checks()}


def text_of(check: str, subject: TrainStep) -> str:
    """How a subject breaks a guarantee, on one line."""
    with pytest.raises(GuaranteeError) as caught:
        CHECKS[check](subject)
    return " ".join(str(caught.value).split())


class OwnRate(AdamW):
    """Inherits its step, as AdamW inherits Adam's."""


def another_first_step(case: Case) -> Any:
    """Several ranks begin at another rate, for one step."""
    model = wrapped(case, SmallNet())
    optimizer = OwnRate(model.parameters(), RATE)
    _, take = stepping_with(case, model, optimizer)

    def step(number: int) -> None:
        rate = RATE / 2 if number == 0 and case.world_size > 1 else RATE
        optimizer.param_groups[0]["lr"] = rate
        take(number)

    return model, step


@pytest.mark.ddp(world_size=2)
def test_the_first_step_of_an_optimizer_that_inherits_its_step_is_judged() -> None:
    text = text_of("MOD-11", TrainStep(another_first_step, steps=2))
    assert "step 1: enter.weight is " in text
    assert "step 2" not in text


class GatheringMomentum(Optimizer):
    """Computes in its gradients and deals updates out, as Muon does."""

    def __init__(self, parameters: Any, case: Case) -> None:
        super().__init__(parameters, {"lr": RATE})
        self.case = case

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update, and send what others have not updated."""
        for place, parameter in enumerate(self.param_groups[0]["params"]):
            owner = place % self.case.world_size
            if owner == self.case.rank:
                zeros = torch.zeros_like(parameter)
                momentum = self.state[parameter].setdefault("momentum", zeros)
                momentum.lerp_(parameter.grad, 0.1)
                parameter.sub_(parameter.grad.lerp_(momentum, 0.9), alpha=RATE)
            if self.case.world_size > 1:
                dist.broadcast(parameter, owner)


def in_two_parts(case: Case) -> Any:
    """One optimizer changes its gradients before another one steps."""
    bare = SmallNet()
    model = wrapped(case, bare)
    first = GatheringMomentum(bare.enter.parameters(), case)
    second = AdamW(bare.leave.parameters(), RATE)

    def step(number: int) -> None:
        points, targets = batch_of(number, share(case))
        loss: Any = nn.functional.mse_loss(model(points), targets)
        loss.backward()
        first.step()
        second.step()
        model.zero_grad()

    return model, step


class Pair(nn.ModuleDict):
    """A generator and its critic, each under DDP."""

    def __init__(self, case: Case, *, synchronizes: bool = True) -> None:
        torch.manual_seed(0)
        super().__init__({"maker": wrapped(case, SmallNet()), "critic": wrapped(case, SmallNet())})
        self.optimizers = [SGD(part.parameters(), RATE) for part in self.values()]
        self.synchronizes = synchronizes


def with_critic(case: Case, *, synchronizes: bool = True) -> Any:
    """The critic's gradients of the other one's step are never used, and so are not reduced."""
    pair = Pair(case)
    maker, critic = pair.values()
    bare = getattr(critic, "module", critic)

    def step(number: int) -> None:
        points, targets = batch_of(number, share(case))
        pair.zero_grad()
        loss: Any = (bare(maker(points) * points) - targets).square().mean()
        loss.backward()
        pair.optimizers[0].step()
        pair.zero_grad()
        loss = ((critic if synchronizes else bare)(points) - targets).square().mean()
        loss.backward()
        pair.optimizers[1].step()

    return pair, step


def with_local_critic(case: Case) -> Any:
    """The critic is not reduced in its own step either."""
    return with_critic(case, synchronizes=False)


@pytest.mark.ddp(world_size=2)
@pytest.mark.parametrize("check", ["MOD-01", "MOD-02", "MOD-11"])
@pytest.mark.parametrize("make", [in_two_parts, with_critic])
def test_each_optimizer_is_judged_by_its_own_gradients(make: Any, check: str) -> None:
    CHECKS[check](TrainStep(make, {"unused_parameters"}, steps=3))


@pytest.mark.ddp(world_size=2)
def test_gradients_that_the_second_optimizer_steps_with_are_judged() -> None:
    text = text_of("MOD-02", TrainStep(with_local_critic, {"unused_parameters"}, steps=2))
    assert "the gradient of critic.enter.weight has " in text


class Checkpointed(SmallNet):
    """Its first layer is made again in a backward pass of its own, within that of the model."""

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        points = points.requires_grad_()
        hidden: Any = checkpoint(self.enter, points, use_reentrant=True)
        out: torch.Tensor = self.leave(hidden.relu())
        return out


def recomputes(case: Case) -> Any:
    """Reentrant checkpointing under DDP."""
    model = wrapped(case, Checkpointed(), static_graph=True)
    return model, stepping(case, model)


@pytest.mark.ddp(world_size=2)
def test_a_backward_pass_within_another_is_a_part_of_it() -> None:
    CHECKS["MOD-05"](TrainStep(recomputes, steps=3))


def divides_late(case: Case, *, reports_scale: bool) -> Any:
    """A sum over samples, which gradients are divided by before they are clipped, as fairseq's."""
    model = wrapped(case, SmallNet())
    optimizer = SGD(model.parameters(), RATE)

    def step(number: int) -> dict[str, float]:
        points, targets = batch_of(number, share(case))
        optimizer.zero_grad()
        summed_loss(model, points, targets).backward()
        for parameter in model.parameters():
            parameter.grad *= case.world_size / case.size
        norm = float(nn.utils.clip_grad_norm_(model.parameters(), 0.1))
        optimizer.step()
        return {"norm": norm, **({"scale": case.size} if reports_scale else {})}

    return model, step


def divides_silently(case: Case) -> Any:
    """The factor is not known."""
    return divides_late(case, reports_scale=False)


def divides_by_scale(case: Case) -> Any:
    """The factor is reported."""
    return divides_late(case, reports_scale=True)


@pytest.mark.ddp(world_size=2)
def test_what_gradients_are_divided_by_is_a_scale() -> None:
    CHECKS["MOD-08"](TrainStep(divides_by_scale, {"decides"}, steps=2))
    text = text_of("MOD-08", TrainStep(divides_silently, {"decides"}, steps=2))
    assert "by what is not in the reported 'scale'?" in text


def in_float16(case: Case, init_scale: float, *, sums_up: bool = False) -> Any:
    """Steps by a gradient scaler; what is summed up in place of a mean is wrong."""
    model = wrapped(case, SmallNet())
    optimizer = SGD(model.parameters(), RATE, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale)

    def step(number: int) -> dict[str, float]:
        points, targets = batch_of(number, share(case))
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss: Any = nn.functional.mse_loss(model(points), targets)
        scaler.scale(loss * (case.world_size if sums_up else 1)).backward()
        scaler.step(optimizer)
        scaler.update()
        return {"scale": scaler.get_scale()}

    return model, step


def scaled(case: Case) -> Any:
    """No step overflows."""
    return in_float16(case, 2.0**8)


def scaled_to_the_limit(case: Case) -> Any:
    """A step overflows on the ranks, whose losses are divided by fewer samples, and not in one
    process."""
    return in_float16(case, LIMIT)


def summed_and_scaled(case: Case) -> Any:
    return in_float16(case, 2.0**8, sums_up=True)


LIMIT = 2.0**16


@pytest.mark.ddp(world_size=2)
@pytest.mark.parametrize("guarantee", ["MOD-02", "MOD-08"])
def test_an_overflow_on_the_ranks_alone_decides_nothing(guarantee: str) -> None:
    def subject(make: Any) -> TrainStep:
        return TrainStep(make, {"decides"}, steps=4, tolerance=1e-2)

    CHECKS[guarantee](subject(scaled))
    with pytest.raises(UndecidedError, match="smaller init_scale"):
        CHECKS[guarantee](subject(scaled_to_the_limit))
    CHECKS["MOD-11"](subject(scaled_to_the_limit))
    if guarantee == "MOD-02":
        assert "gradient of" in text_of(guarantee, subject(summed_and_scaled))
