"""MOD-11: what optimizers make of gradients that are right."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.optim import SGD, AdamW, Optimizer, RMSprop
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import AveragedModel

from ddp_conformance.framework.case import Case
from ddp_conformance.framework.mutants import BenignVariant, Mutant
from ddp_conformance.model.mutants.sharded import stepping_with
from ddp_conformance.model.mutants.step_mutants import Made, SmallNet, wrapped
from ddp_conformance.model.subjects import TrainStep

RATE, DECAY = 1e-2, 0.1


@torch.no_grad()
def decay(model: nn.Module) -> None:
    """Decay as AdamW does, by hand."""
    for parameter in model.parameters():
        parameter.mul_(1 - RATE * DECAY)


def decays_twice(case: Case) -> Made:
    """The distributed trainer decays, and so does the optimizer."""
    model = wrapped(case, SmallNet())
    optimizer = AdamW(model.parameters(), RATE, weight_decay=DECAY)
    return stepping_with(
        case, model, optimizer, (lambda: decay(model)) if case.world_size > 1 else int
    )


def decays_by_hand(case: Case) -> Made:
    """The distributed trainer decays before the step, in place of the optimizer."""
    model = wrapped(case, SmallNet())
    by_hand = case.world_size > 1
    optimizer = AdamW(model.parameters(), RATE, weight_decay=0.0 if by_hand else DECAY)
    if by_hand:
        optimizer.register_step_pre_hook(lambda *_: decay(model))
    return stepping_with(case, model, optimizer)


def groups(named: Iterable[tuple[str, nn.Parameter]]) -> list[dict[str, Any]]:
    """Parameter groups without decay for the last layer."""
    pairs = list(named)
    return [
        {"params": [p for name, p in pairs if not name.startswith("leave.")]},
        {"params": [p for name, p in pairs if name.startswith("leave.")], "weight_decay": 0.0},
    ]


def group_lost(case: Case) -> Made:
    """Under DDP the last layer is called module.leave."""
    model = wrapped(case, SmallNet())
    optimizer = AdamW(groups(model.named_parameters()), RATE, weight_decay=DECAY)
    return stepping_with(case, model, optimizer)


def groups_by_bare_names(case: Case) -> Made:
    """Groups are made before the wrap."""
    bare = SmallNet()
    optimizer = AdamW(groups(bare.named_parameters()), RATE, weight_decay=DECAY)
    return stepping_with(case, wrapped(case, bare), optimizer)


def scheduled_for_each_rank(case: Case) -> Made:
    """Schedule as if each step of the group counted as one of each rank."""
    model = wrapped(case, SmallNet())
    optimizer = SGD(model.parameters(), RATE, momentum=0.9)
    scheduler = LambdaLR(optimizer, lambda number: 0.8**number)

    def then() -> None:
        for _ in range(case.world_size):
            scheduler.step()

    return stepping_with(case, model, optimizer, then)


def stretched_for_each_rank(case: Case) -> Made:
    """A schedule that is as many times longer."""
    model = wrapped(case, SmallNet())
    optimizer = SGD(model.parameters(), RATE, momentum=0.9)
    scheduler = LambdaLR(optimizer, lambda number: 0.8 ** (number // case.world_size))

    def then() -> None:
        for _ in range(case.world_size):
            scheduler.step()

    return stepping_with(case, model, optimizer, then)


def narrow_moments(optimizer: Optimizer) -> None:
    """The first moments are kept in bfloat16."""
    for state in optimizer.state.values():
        state["exp_avg"] = state["exp_avg"].bfloat16().float()


def moments_of_one_rank(case: Case) -> Made:
    """One rank, as with less memory, keeps them so."""
    model = wrapped(case, SmallNet())
    optimizer = AdamW(model.parameters(), RATE)
    is_last = case.world_size > 1 and case.rank == case.world_size - 1
    then = (lambda: narrow_moments(optimizer)) if is_last else int
    return stepping_with(case, model, optimizer, then)


def moments_in_bfloat16(case: Case) -> Made:
    """All ranks do, and so does one process."""
    model = wrapped(case, SmallNet())
    optimizer = AdamW(model.parameters(), RATE)
    return stepping_with(case, model, optimizer, lambda: narrow_moments(optimizer))


def sharded(case: Case) -> Any:
    """Under FSDP2, where there are several ranks."""
    torch.manual_seed(3)
    model = SmallNet()
    if case.world_size > 1:
        fully_shard(model, mesh=init_device_mesh("cpu", (case.world_size,)))
    return model


def shards_with_adamw(case: Case) -> Made:
    """A rate that is a tensor, and decay of some."""
    model = sharded(case)
    rate = torch.tensor(RATE)
    return stepping_with(
        case, model, AdamW(groups(model.named_parameters()), rate, weight_decay=DECAY)
    )


def fused_against_loops(case: Case) -> Made:
    """Ranks have one kernel for all parameters, one process a loop over them."""
    model = wrapped(case, SmallNet())
    optimizer: Any = AdamW
    way = {"fused": True} if case.world_size > 1 else {"foreach": False}
    return stepping_with(
        case, model, optimizer(model.parameters(), RATE, weight_decay=DECAY, **way)
    )


def foreach_against_loops(case: Case) -> Made:
    """Ranks step with lists of tensors, one process with each tensor."""
    model = wrapped(case, SmallNet())
    optimizer = RMSprop(model.parameters(), RATE, momentum=0.9, foreach=case.world_size > 1)
    return stepping_with(case, model, optimizer)


class Lamb(Optimizer):
    """Adam's step without its moments' corrections, as long as the layer is."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": RATE})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Norms are reduced over ranks where parameters are sharded."""
        for parameter in self._stepping():
            state = self.state[parameter]
            if not state:
                state["first"] = torch.zeros_like(parameter)
                state["second"] = torch.zeros_like(parameter)
            gradient: Any = parameter.grad
            state["first"].lerp_(gradient, 0.1)
            state["second"].lerp_(gradient * gradient, 0.01)
            update = state["first"] / (state["second"].sqrt() + 1e-6)
            trust = parameter.norm() / (update.norm() + 1e-6)
            parameter.sub_(update * trust * RATE)

    def _stepping(self) -> Iterator[Tensor]:
        for group in self.param_groups:
            yield from (p for p in group["params"] if p.grad is not None)


def shards_with_lamb(case: Case) -> Made:
    """Its norms are sums in another order."""
    model = sharded(case)
    return stepping_with(case, model, Lamb(model.parameters()))


def averages_swapped_in(case: Case) -> Made:
    """An average of the weights is swapped in, looked at, and swapped back."""
    model = wrapped(case, SmallNet())
    bare = getattr(model, "module", model)
    optimizer = SGD(model.parameters(), RATE, momentum=0.9)
    average = AveragedModel(bare)

    def then() -> None:
        average.update_parameters(bare)
        for _ in range(2):
            for one, other in zip(bare.parameters(), average.module.parameters(), strict=True):
                one.data, other.data = other.data, one.data

    return stepping_with(case, model, optimizer, then)


TWO = (2,)
SIZES = (2, 3)

MUTANTS = (
    Mutant(TrainStep(decays_twice), "MOD-11", "decay by the trainer and by the optimizer", SIZES),
    # pytorch#101343
    Mutant(TrainStep(group_lost), "MOD-11", "a parameter group lost by its name", SIZES),
    Mutant(
        TrainStep(scheduled_for_each_rank),
        "MOD-11",
        "a scheduler stepped for each rank",
        SIZES,
    ),
    Mutant(TrainStep(moments_of_one_rank), "MOD-11", "moments in bfloat16 on one rank", SIZES),
)

BENIGN_VARIANTS = (
    BenignVariant(TrainStep(decays_by_hand), "decay by the trainer alone", SIZES),
    BenignVariant(TrainStep(groups_by_bare_names), "groups made before the wrap", SIZES),
    BenignVariant(
        TrainStep(stretched_for_each_rank), "steps of a scheduler that is stretched", SIZES
    ),
    BenignVariant(TrainStep(moments_in_bfloat16), "moments in bfloat16 everywhere", SIZES),
    BenignVariant(TrainStep(shards_with_adamw), "FSDP2, groups, and a rate in a tensor", TWO),
    BenignVariant(TrainStep(fused_against_loops), "a fused optimizer", TWO),
    BenignVariant(TrainStep(foreach_against_loops), "an optimizer of lists", TWO),
    BenignVariant(TrainStep(shards_with_lamb), "norms that shards are reduced for", TWO),
    BenignVariant(TrainStep(averages_swapped_in), "averages swapped in and back", TWO),
)
