"""MOD-02: a vocabulary on ranks, and the cross-entropy of its parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.optim import SGD

from ddp_conformance.framework.case import Case
from ddp_conformance.framework.mutants import BenignVariant, Mutant
from ddp_conformance.model.mutants.moving import gathered_for_all, summed, used_by_all
from ddp_conformance.model.mutants.step_mutants import FEATURES, RATE, Made, batch_of
from ddp_conformance.model.mutants.tensor_parallel import own
from ddp_conformance.model.subjects import TrainStep

WIDTH, WORDS = 3, 8

Loss = Callable[[Tensor, Tensor], Tensor]
"""Of the logits that a rank has, and the words of all samples."""


class Speaking(nn.Module):
    """Logits of this rank's words."""

    def __init__(self, mesh: Any) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.mesh = mesh
        self.enter = nn.Linear(FEATURES, WIDTH)
        self.words = nn.Linear(WIDTH, WORDS, bias=False)
        if mesh is not None:
            parts = distribute_tensor(self.words.weight.detach(), mesh, [Shard(0)])
            self.words.weight = nn.Parameter(parts)

    def forward(self, points: Tensor) -> Tensor:
        hidden = self.enter(points).tanh()
        if self.mesh is not None:
            hidden = used_by_all(hidden)
        return nn.functional.linear(hidden, own(self.words.weight))


def cross_entropy_of_parts(logits: Tensor, words: Tensor) -> Tensor:
    """Each rank has the logits of as many words, in the order of the ranks."""
    width = logits.shape[1]
    largest = logits.detach().amax(1)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    total = summed((logits - largest[:, None]).exp().sum(1))
    places = words - dist.get_rank() * width
    mine = (places >= 0) & (places < width)
    found = logits.gather(1, places.clamp(0, width - 1)[:, None])[:, 0]
    wanted = summed(torch.where(mine, found, 0.0))
    return (total.log() + largest - wanted).mean()


def cross_entropy_of_gathered(logits: Tensor, words: Tensor) -> Tensor:
    """All ranks have all logits, and make the same of them."""
    return nn.functional.cross_entropy(gathered_for_all(logits.T).T, words)


def cross_entropy_of_gathered_as_parts(logits: Tensor, words: Tensor) -> Tensor:
    """All ranks have all logits, and count each as often as there are ranks."""
    return cross_entropy_of_parts(gathered_for_all(logits.T).T, words)


def speaking_with(case: Case, loss: Loss) -> Made:
    """A step of all ranks on the same samples."""
    alone = case.world_size == 1
    model = Speaking(None if alone else init_device_mesh("cpu", (case.world_size,)))
    optimizer = SGD(model.parameters(), RATE, momentum=0.5)
    words = torch.arange(case.size) % WORDS

    def step(number: int) -> None:
        points, _ = batch_of(number, range(case.size))
        optimizer.zero_grad()
        made: Any = (nn.functional.cross_entropy if alone else loss)(model(points), words)
        made.backward()
        optimizer.step()

    return model, step


def vocabulary_in_parts(case: Case) -> Made:
    """Right."""
    return speaking_with(case, cross_entropy_of_parts)


def vocabulary_gathered(case: Case) -> Made:
    """Right."""
    return speaking_with(case, cross_entropy_of_gathered)


def vocabulary_gathered_as_parts(case: Case) -> Made:
    """A loss that is off by the logarithm of the number of ranks, with a wrong gradient."""
    return speaking_with(case, cross_entropy_of_gathered_as_parts)


TWO = (2,)

MUTANTS = (
    # Megatron-LM#7452
    Mutant(
        TrainStep(vocabulary_gathered_as_parts),
        "MOD-02",
        "gathered logits taken for parts of them",
        TWO,
    ),
)

BENIGN_VARIANTS = (
    BenignVariant(TrainStep(vocabulary_in_parts), "a cross-entropy of parts", TWO),
    BenignVariant(TrainStep(vocabulary_gathered), "gathered logits", TWO),
)
