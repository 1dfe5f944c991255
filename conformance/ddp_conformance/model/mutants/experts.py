"""MOD-02 and MOD-08: experts on ranks, with tokens that go to the rank of their expert and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

from ddp_conformance.framework.case import Case
from ddp_conformance.framework.mutants import BenignVariant, Mutant
from ddp_conformance.model.mutants.moving import clip, exchanged, square, summed_over_ranks
from ddp_conformance.model.mutants.step_mutants import FEATURES, RATE, batch_of, share
from ddp_conformance.model.mutants.tensor_parallel import own
from ddp_conformance.model.subjects import TrainStep

EXPERTS, WIDTH, LIMIT = 4, 6, 0.05
"""Each of two or four ranks has equally many experts; the norm is above the limit in each step."""

Made = tuple[nn.Module, Callable[[int], Mapping[str, float]]]


class Mixture(nn.Module):
    """A layer in which each token goes through one of four experts, by the gate's choice.

    A rank has its own experts alone, by their numbers among all.
    """

    def __init__(self, rank: int, world_size: int) -> None:
        super().__init__()
        self.world_size = world_size
        self.own = EXPERTS // world_size
        torch.manual_seed(7)
        self.enter = nn.Linear(FEATURES, WIDTH)
        self.gate = nn.Linear(WIDTH, EXPERTS)
        every = [nn.Linear(WIDTH, WIDTH) for _ in range(EXPERTS)]
        numbers = range(rank * self.own, (rank + 1) * self.own)
        self.experts = nn.ModuleDict({str(number): every[number] for number in numbers})
        self.leave = nn.Linear(WIDTH, 1)

    def forward(self, points: Tensor) -> Tensor:
        hidden = self.enter(points).tanh()
        shares = self.gate(hidden).softmax(1)
        largest, chosen = shares.max(1)
        order = chosen.argsort(stable=True)
        numbers = torch.bincount(chosen, minlength=EXPERTS)
        if self.world_size == 1:
            found = self._through_experts(hidden[order], numbers)
        else:
            found = self._on_their_ranks(hidden[order], numbers)
        back = torch.empty_like(found).index_copy(0, order, found)
        out: Tensor = self.leave(hidden + back * largest[:, None])
        return out

    def _on_their_ranks(self, tokens: Tensor, numbers: Tensor) -> Tensor:
        """Tokens are sorted by expert, and so by rank."""
        theirs = torch.empty_like(numbers)
        dist.all_to_all_single(theirs, numbers)
        given = numbers.view(-1, self.own).sum(1).tolist()
        by_rank = theirs.view(-1, self.own)
        taken = by_rank.sum(1).tolist()
        came = exchanged(tokens, given, taken)
        kinds = torch.arange(self.own).repeat(self.world_size).repeat_interleave(theirs)
        order = kinds.argsort(stable=True)
        found = self._through_experts(came[order], by_rank.sum(0))
        back = torch.empty_like(found).index_copy(0, order, found)
        return exchanged(back, taken, given)

    def _through_experts(self, tokens: Tensor, numbers: Tensor) -> Tensor:
        parts = torch.split(tokens, numbers.tolist())
        pairs = zip(self.experts.values(), parts, strict=True)
        return torch.cat([expert(part).relu() for expert, part in pairs])


class ExpertStep:
    """A step in parts that mutants replace: means over samples, dense layers under DDP."""

    def __init__(self, case: Case) -> None:
        self.case = case
        bare = Mixture(case.rank, case.world_size)
        self.experts = [*bare.experts.parameters()]
        own = {id(parameter) for parameter in self.experts}
        self.model = self.wrapped(bare) if case.world_size > 1 else bare
        self.dense = [p for p in self.model.parameters() if id(p) not in own]
        self.optimizer = SGD(self.model.parameters(), RATE, momentum=0.5)

    def wrapped(self, bare: Mixture) -> nn.Module:
        """Under DDP, but for the experts."""
        ddp: Any = DistributedDataParallel
        names = [f"experts.{name}" for name, _ in bare.experts.named_parameters()]
        ddp._set_params_and_buffers_to_ignore_for_model(bare, names)
        made: nn.Module = ddp(bare)
        return made

    def step(self, number: int) -> Mapping[str, float]:
        """Reports the norm by which it clips."""
        points, targets = batch_of(number, share(self.case))
        self.optimizer.zero_grad()
        loss: Any = nn.functional.mse_loss(self.model(points), targets)
        loss.backward()
        self.divide()
        norm = self.norm()
        clip([p.grad for p in self.model.parameters()], norm, LIMIT)
        self.optimizer.step()
        return {"norm": norm}

    def divide(self) -> None:
        """An expert has the gradients of all ranks' means already; DDP divides the dense ones."""
        for parameter in self.experts:
            if parameter.grad is not None:
                parameter.grad.div_(self.case.world_size)

    def norm(self) -> float:
        """The norm of all experts, wherever they are, and of each dense layer once."""
        experts = square(p.grad for p in self.experts)
        if self.case.world_size > 1:
            experts = summed_over_ranks(experts)
        return float((experts + square(p.grad for p in self.dense)).sqrt())


def experts_on_ranks(case: Case) -> Made:
    """Right."""
    parts = ExpertStep(case)
    return parts.model, parts.step


class Unscaled(ExpertStep):
    """Has another sum of the squares, and the same norm: each rank's share of the dense ones."""

    def norm(self) -> float:
        """The norm in one reduction of both."""
        world_size = self.case.world_size
        own = square(p.grad for p in self.experts) + square(p.grad for p in self.dense) / world_size
        return float((summed_over_ranks(own) if world_size > 1 else own).sqrt())


def norm_in_one_reduction(case: Case) -> Made:
    """Each rank counts its share of what all have."""
    parts = Unscaled(case)
    return parts.model, parts.step


class DividesTheLoss(ExpertStep):
    """Sums over samples, each divided by the number of all, and dense gradients that are summed."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.model = getattr(self.model, "module", self.model)

    def step(self, number: int) -> Mapping[str, float]:
        """Step as the other one does."""
        points, targets = batch_of(number, share(self.case))
        self.optimizer.zero_grad()
        loss = nn.functional.mse_loss(self.model(points), targets, reduction="sum")
        mean: Any = loss / self.case.size
        mean.backward()
        for parameter in self.dense if self.case.world_size > 1 else ():
            dist.all_reduce(parameter.grad)
        norm = self.norm()
        clip([p.grad for p in self.model.parameters()], norm, LIMIT)
        self.optimizer.step()
        return {"norm": norm}


def experts_not_divided_as_the_loss_is(case: Case) -> Made:
    """Nothing is divided: the loss is, by all samples."""
    parts = DividesTheLoss(case)
    return parts.model, parts.step


class Undivided(ExpertStep):
    """The experts' gradients are the sum of what the dense ones are the mean of."""

    def divide(self) -> None:
        """Nothing is divided."""


def experts_not_divided(case: Case) -> Made:
    """The rate of the experts is multiplied by the number of ranks."""
    parts = Undivided(case)
    return parts.model, parts.step


class WithoutExperts(ExpertStep):
    """All ranks agree on a norm that leaves the experts out."""

    def norm(self) -> float:
        """The norm of the dense layers."""
        if self.case.world_size == 1:
            return super().norm()
        return float(square(p.grad for p in self.dense).sqrt())


def norm_without_experts(case: Case) -> Made:
    """Clipped too late."""
    parts = WithoutExperts(case)
    return parts.model, parts.step


class CountsDenseForEachRank(ExpertStep):
    """The squares of all ranks' gradients are summed, whether or not others have them too."""

    def norm(self) -> float:
        """The norm of what each rank has, summed over ranks."""
        own = square(p.grad for p in self.model.parameters())
        return float((summed_over_ranks(own) if self.case.world_size > 1 else own).sqrt())


def norm_counts_dense_for_each_rank(case: Case) -> Made:
    """Clipped too early."""
    parts = CountsDenseForEachRank(case)
    return parts.model, parts.step


class AveragesNorms(ExpertStep):
    """A norm of each rank's own experts, averaged over ranks with other experts."""

    def norm(self) -> float:
        """The mean of the ranks' norms."""
        own = square(p.grad for p in self.model.parameters()).sqrt()
        world_size = self.case.world_size
        return float(summed_over_ranks(own) / world_size if world_size > 1 else own)


def norms_averaged_over_experts(case: Case) -> Made:
    """A mean of norms is no norm."""
    parts = AveragesNorms(case)
    return parts.model, parts.step


class ShardsDense(ExpertStep):
    """The dense layers are sharded, and the experts are not."""

    def wrapped(self, bare: Mixture) -> nn.Module:
        """Under FSDP2."""
        mesh = init_device_mesh("cpu", (self.case.world_size,))
        fully_shard(bare, mesh=mesh, ignored_params={*self.experts})
        return bare

    def norm(self) -> float:
        """Of all shards and experts, wherever they are."""
        if self.case.world_size == 1:
            return super().norm()
        return float(summed_over_ranks(self.dense_square() + square_of(self.experts)).sqrt())

    def dense_square(self) -> Tensor:
        """Of this rank's shards."""
        return square(own(p.grad) for p in self.dense)


def square_of(parameters: Iterable[Tensor]) -> Tensor:
    """Of their gradients."""
    return square(parameter.grad for parameter in parameters)


def experts_beside_shards(case: Case) -> Made:
    """Right."""
    parts = ShardsDense(case)
    return parts.model, parts.step


class NormOfOwnExperts(ShardsDense):
    """Each rank clips by a norm of the dense layers and of its own experts.

    No two ranks have the same shard, so that the ranks' parameters do not show it.
    """

    def norm(self) -> float:
        """Another one on each rank."""
        if self.case.world_size == 1:
            return super().norm()
        return float((summed_over_ranks(self.dense_square()) + square_of(self.experts)).sqrt())


def norm_of_own_experts(case: Case) -> Made:
    """Shards of one layer are clipped by unlike factors."""
    parts = NormOfOwnExperts(case)
    return parts.model, parts.step


SIZES = (2, 4)
DECIDES = frozenset({"decides"})

MUTANTS = (
    # Megatron-LM#5956, Megatron-LM#7165, pytorch#160285
    Mutant(
        TrainStep(experts_not_divided, DECIDES),
        "MOD-02",
        "experts' gradients not divided as the dense ones",
        SIZES,
    ),
    # Megatron-LM#5916
    Mutant(TrainStep(norm_without_experts, DECIDES), "MOD-08", "a norm without the experts", SIZES),
    # Automodel#3816
    Mutant(TrainStep(norm_of_own_experts, DECIDES), "MOD-08", "a norm of the own experts", (2,)),
    # NeMo-RL#3788
    Mutant(
        TrainStep(norm_counts_dense_for_each_rank, DECIDES),
        "MOD-08",
        "a norm that counts dense layers for each rank",
        SIZES,
    ),
    # DeepSpeed#8475
    Mutant(
        TrainStep(norms_averaged_over_experts, DECIDES),
        "MOD-08",
        "norms averaged over unlike experts",
        SIZES,
    ),
)

BENIGN_VARIANTS = (
    BenignVariant(TrainStep(experts_on_ranks, DECIDES), "experts on ranks", SIZES),
    BenignVariant(TrainStep(experts_beside_shards, DECIDES), "experts beside shards", SIZES),
    BenignVariant(
        TrainStep(norm_in_one_reduction, DECIDES), "a norm of shares, reduced once", SIZES
    ),
    BenignVariant(
        TrainStep(experts_not_divided_as_the_loss_is, DECIDES),
        "experts' gradients not divided, nor the dense ones",
        SIZES,
    ),
)
