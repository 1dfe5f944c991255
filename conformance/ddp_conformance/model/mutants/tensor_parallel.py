"""MOD-02 and MOD-08: layers that are split over ranks, by hand as Megatron splits them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.optim import SGD

from ddp_conformance.framework.case import Case
from ddp_conformance.framework.mutants import BenignVariant, Mutant
from ddp_conformance.model.mutants.moving import (
    clip,
    gathered,
    square,
    summed,
    summed_over_ranks,
    used_by_all,
)
from ddp_conformance.model.mutants.step_mutants import FEATURES, RATE, batch_of
from ddp_conformance.model.subjects import TrainStep

WIDTH, HIDDEN, LIMIT = 3, 4, 0.05

Made = tuple[nn.Module, Callable[[int], Mapping[str, float]]]


class SplitNet(nn.Module):
    """A norm that all ranks have, a layer split by its outputs, and one split by its inputs.

    With ``sequence`` each rank normalises its own samples, which are gathered behind the norm.
    """

    def __init__(self, mesh: Any, *, sequence: bool = False) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.mesh, self.sequence = mesh, sequence and mesh is not None
        self.norm = nn.LayerNorm(FEATURES)
        self.up, self.down = nn.Linear(FEATURES, HIDDEN), nn.Linear(HIDDEN, 1)
        if mesh is not None:
            for layer, name, place in (
                (self.up, "weight", 0),
                (self.up, "bias", 0),
                (self.down, "weight", 1),
            ):
                whole: Any = getattr(layer, name)
                parts = distribute_tensor(whole.detach(), mesh, [Shard(place)])
                setattr(layer, name, nn.Parameter(parts))

    def forward(self, points: Tensor) -> Tensor:
        group = None if self.mesh is None else self.mesh.get_group()
        inputs = self.norm(points)
        if self.sequence:
            inputs = gathered(inputs)
        elif self.mesh is not None:
            inputs = used_by_all(inputs, group)
        hidden = nn.functional.linear(inputs, own(self.up.weight), own(self.up.bias)).relu()
        part = hidden @ own(self.down.weight).T
        return self.whole(part, group)

    def whole(self, part: Tensor, group: Any) -> Tensor:
        """The bias is added to the sum."""
        return (part if group is None else summed(part, group)) + self.down.bias


def own(tensor: Any) -> Tensor:
    """This rank's part, through which gradients go back."""
    part: Tensor = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return part


class SplitStep:
    """A step of all ranks on the same samples."""

    network: type[SplitNet] = SplitNet
    sequence = False
    limit = LIMIT

    def __init__(self, case: Case) -> None:
        self.case = case
        self.alone = case.world_size == 1
        mesh = None if self.alone else init_device_mesh("cpu", (case.world_size,))
        self.model = self.network(mesh, sequence=self.sequence)
        self.optimizer = SGD(self.model.parameters(), RATE, momentum=0.5)

    def step(self, number: int) -> Mapping[str, float]:
        """Reports the norm by which it clips."""
        points, targets = batch_of(number, range(self.case.size))
        if self.sequence and not self.alone:
            points = points.chunk(self.case.world_size)[self.part()]
            targets = self.in_order(targets)
        self.optimizer.zero_grad()
        loss: Any = self.loss(nn.functional.mse_loss(self.model(points), targets))
        loss.backward()
        self.reduce()
        norm = self.norm()
        clip([own(p.grad) for p in self.model.parameters()], norm, self.limit)
        self.optimizer.step()
        return {"norm": norm}

    def part(self) -> int:
        """Which part of a sequence this rank has."""
        return self.case.rank

    def in_order(self, targets: Tensor) -> Tensor:
        """As the gathered samples are."""
        return targets

    def loss(self, mean: Tensor) -> Tensor:
        """All ranks have all samples."""
        return mean

    def reduce(self) -> None:
        """Nothing: each rank has the whole gradient of what it has."""

    def norm(self) -> float:
        """The norm in which what all have counts once."""
        split = [p.grad for p in self.model.parameters() if isinstance(p, DTensor)]
        same = [p.grad for p in self.model.parameters() if not isinstance(p, DTensor)]
        parts = square(map(own, split))
        total = summed_over_ranks(parts) if not self.alone else parts
        return float((total + square(same)).sqrt())


def split_by_hand(case: Case) -> Made:
    """Right."""
    parts = SplitStep(case)
    return parts.model, parts.step


class OverSequence(SplitStep):
    """The norm's gradients are those of each rank's own samples, until they are summed.

    ``Gathered`` sums what all ranks make of a sample, which is each rank's part of its gradient.
    """

    sequence = True

    def reduce(self) -> None:
        """Sum them."""
        if not self.alone:
            for parameter in self.model.norm.parameters():
                dist.all_reduce(parameter.grad)


def split_over_sequence(case: Case) -> Made:
    """Right."""
    parts = OverSequence(case)
    return parts.model, parts.step


class Backwards(OverSequence):
    """The last rank has the first part."""

    def part(self) -> int:
        """In the opposite order."""
        return self.case.world_size - 1 - self.case.rank

    def in_order(self, targets: Tensor) -> Tensor:
        """In the opposite order, too."""
        return torch.cat(targets.chunk(self.case.world_size)[::-1])


def split_over_sequence_backwards(case: Case) -> Made:
    """Right."""
    parts = Backwards(case)
    return parts.model, parts.step


class PartOfAnotherGroup(OverSequence):
    """The place of a rank in another group than that which gathers."""

    def part(self) -> int:
        """Among pairs of ranks: some parts come twice, others never."""
        return self.case.rank // 2


def sequence_of_another_group(case: Case) -> Made:
    """Samples are lost, and others are repeated."""
    parts = PartOfAnotherGroup(case)
    return parts.model, parts.step


class NormUnreduced(OverSequence):
    """Each rank's norm goes its own way."""

    def reduce(self) -> None:
        """Nothing."""


def norm_not_reduced(case: Case) -> Made:
    """A parameter that all ranks have, and that each trains by its own samples."""
    parts = NormUnreduced(case)
    return parts.model, parts.step


class BiasOnEach(SplitNet):
    """A layer whose bias is left in what each rank computes."""

    def whole(self, part: Tensor, group: Any) -> Tensor:
        """The bias is a part of what is summed."""
        part = part + self.down.bias
        return part if group is None else summed(part, group)


class AddsBiasOnEach(SplitStep):
    """Its bias counts once for each rank."""

    network = BiasOnEach


def bias_on_each_rank(case: Case) -> Made:
    """Bias added before the reduction."""
    parts = AddsBiasOnEach(case)
    return parts.model, parts.step


class ShareOfBias(SplitNet):
    """Each rank adds its share of the bias to what is summed."""

    def whole(self, part: Tensor, group: Any) -> Tensor:
        """The share has a gradient of its own, which is a share too: it is made whole."""
        if group is None:
            return part + self.down.bias
        size = dist.get_world_size(group)
        return summed(part + used_by_all(self.down.bias, group) / size, group)


class AddsShareOfBias(SplitStep):
    """A bias before the reduction, divided by the number of ranks."""

    network = ShareOfBias


def share_of_bias_on_each_rank(case: Case) -> Made:
    """Right."""
    parts = AddsShareOfBias(case)
    return parts.model, parts.step


class DividesByAllRanks(SplitStep):
    """Divides by ranks that have no samples of their own, and clips nothing."""

    limit = math.inf

    def loss(self, mean: Tensor) -> Tensor:
        """All ranks are one data-parallel rank here."""
        return mean / self.case.world_size


def loss_divided_by_all_ranks(case: Case) -> Made:
    """The rate falls with the number of tensor-parallel ranks."""
    parts = DividesByAllRanks(case)
    return parts.model, parts.step


class LocalNorm(SplitStep):
    """Each rank clips by what it has."""

    def norm(self) -> float:
        """The norm of the own parts."""
        return float(square(own(p.grad) for p in self.model.parameters()).sqrt())


def norm_of_own_parts(case: Case) -> Made:
    """Ranks clip by unlike norms."""
    parts = LocalNorm(case)
    return parts.model, parts.step


class CountsPartOfTheFirst(SplitStep):
    """A bias that is split counts as one that all have: by the first rank's part."""

    def norm(self) -> float:
        """Without the other ranks' parts of it."""
        if self.alone:
            return super().norm()
        bias: Any = self.model.up.bias
        split = [p for p in self.model.parameters() if isinstance(p, DTensor) and p is not bias]
        if self.case.rank == 0:
            split.append(bias)
        same = [p.grad for p in self.model.parameters() if not isinstance(p, DTensor)]
        total = summed_over_ranks(square(own(p.grad) for p in split))
        return float((total + square(same)).sqrt())


def norm_counts_part_of_the_first(case: Case) -> Made:
    """All ranks clip by a norm that is too small."""
    parts = CountsPartOfTheFirst(case)
    return parts.model, parts.step


class GathersForItsNorm(SplitStep):
    """Puts the gradients together, each with all its parts."""

    def norm(self) -> float:
        """Of whole gradients."""
        gradients: list[Any] = [parameter.grad for parameter in self.model.parameters()]
        return float(square(map(whole, gradients)).sqrt())


def whole(gradient: Any) -> Tensor:
    """All parts; a collective if it has some."""
    tensor: Tensor = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
    return tensor


def norm_of_gathered_parts(case: Case) -> Made:
    """Right."""
    parts = GathersForItsNorm(case)
    return parts.model, parts.step


SIZES = (2, 4)
TWO = (2,)
DECIDES = frozenset({"decides"})

MUTANTS = (
    # Automodel#3822, AReaL#313
    Mutant(
        TrainStep(norm_not_reduced, DECIDES),
        "MOD-02",
        "a replicated norm not reduced under sequence parallelism",
        SIZES,
    ),
    Mutant(
        TrainStep(bias_on_each_rank, DECIDES), "MOD-02", "bias added before the reduction", SIZES
    ),
    Mutant(
        TrainStep(loss_divided_by_all_ranks, DECIDES),
        "MOD-02",
        "a loss divided by ranks that share their samples",
        SIZES,
    ),
    # Megatron-LM#7452
    Mutant(
        TrainStep(sequence_of_another_group, DECIDES),
        "MOD-02",
        "a sequence cut by the rank in another group",
        SIZES,
    ),
    # Megatron-LM#7452
    Mutant(
        TrainStep(norm_counts_part_of_the_first, DECIDES),
        "MOD-08",
        "a norm with one rank's part of a split bias",
        TWO,
    ),
    # transformers#36132
    Mutant(TrainStep(norm_of_own_parts, DECIDES), "MOD-08", "a norm of the own parts", SIZES),
)

BENIGN_VARIANTS = (
    BenignVariant(TrainStep(split_by_hand, DECIDES), "layers split by hand", SIZES),
    BenignVariant(TrainStep(split_over_sequence, DECIDES), "sequence parallelism", SIZES),
    BenignVariant(
        TrainStep(split_over_sequence_backwards, DECIDES), "a sequence in another order", TWO
    ),
    BenignVariant(TrainStep(norm_of_gathered_parts, DECIDES), "a norm of gathered parts", TWO),
    BenignVariant(
        TrainStep(share_of_bias_on_each_rank, DECIDES),
        "a share of the bias before the reduction",
        SIZES,
    ),
)
