"""MOD-02: a sequence on ranks, with the keys and values of all of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import SGD

from ddp_conformance.framework.case import Case
from ddp_conformance.framework.mutants import BenignVariant, Mutant
from ddp_conformance.model.mutants.moving import clip, from_the_rank_before, gathered, square
from ddp_conformance.model.mutants.step_mutants import FEATURES, RATE, batch_of
from ddp_conformance.model.subjects import TrainStep

WIDTH, LIMIT = 4, 0.05

Made = tuple[nn.Module, Callable[[int], Mapping[str, float]]]
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


class Attending(nn.Module):
    """Causal attention over one sequence, of which each rank has a part."""

    def __init__(self, attention: Attention) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.attention = attention
        self.enter = nn.Linear(FEATURES, WIDTH)
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH)
        self.value = nn.Linear(WIDTH, WIDTH)
        self.leave = nn.Linear(WIDTH, 1)

    def forward(self, points: Tensor) -> Tensor:
        hidden = self.enter(points).tanh()
        found = self.attention(self.query(hidden), self.key(hidden), self.value(hidden))
        out: Tensor = self.leave(hidden + found)
        return out


def whole(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """The step in one process."""
    return _weights(queries, keys, 0).softmax(1) @ values


def gathering(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Keys and values of all ranks are gathered."""
    every = gathered(torch.cat([keys, values], 1))
    start = dist.get_rank() * len(queries)
    return _weights(queries, every[:, :WIDTH], start).softmax(1) @ every[:, WIDTH:]


def ring(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Keys and values go from rank to rank, and the softmax is made block by block."""
    rank, world_size, length = dist.get_rank(), dist.get_world_size(), len(queries)
    pair = torch.cat([keys, values], 1)
    largest = queries.new_full((length, 1), -torch.inf)
    total, found = torch.zeros_like(largest), torch.zeros_like(values)
    for place in range(world_size):
        source = (rank - place) % world_size
        weights = _weights(queries, pair[:, :WIDTH], (rank - source) * length)
        highest = torch.maximum(largest, weights.amax(1, keepdim=True))
        shrunk, shares = (largest - highest).exp(), (weights - highest).exp()
        total = total * shrunk + shares.sum(1, keepdim=True)
        found = found * shrunk + shares @ pair[:, WIDTH:]
        largest = highest
        if place < world_size - 1:
            pair = from_the_rank_before(pair)
    out: Tensor = found / total
    return out


def _weights(queries: Tensor, keys: Tensor, start: int) -> Tensor:
    """The first query is at this place among the keys; later keys count as -inf."""
    places = torch.arange(len(queries))[:, None] + start
    later = torch.arange(len(keys)) > places
    return (queries @ keys.T / math.sqrt(WIDTH)).masked_fill(later, -torch.inf)


class ContextStep:
    """A step on one sequence, whose first tokens are a question and do not count."""

    def __init__(self, case: Case, attention: Attention) -> None:
        self.case = case
        self.model = Attending(attention if case.world_size > 1 else whole)
        self.optimizer = SGD(self.model.parameters(), RATE, momentum=0.5)
        length = case.size // case.world_size
        self.own = range(case.rank * length, (case.rank + 1) * length)
        self.counted = torch.tensor([[float(place >= 3)] for place in self.own])

    def step(self, number: int) -> Mapping[str, float]:
        """Reports the norm by which it clips."""
        points, targets = batch_of(number, self.own)
        self.optimizer.zero_grad()
        errors = (self.model(points) - targets).square() * self.counted
        loss: Any = self.loss(errors.sum())
        loss.backward()
        gradients = [parameter.grad for parameter in self.model.parameters()]
        for gradient in gradients if self.case.world_size > 1 else ():
            dist.all_reduce(gradient)
        norm = float(square(gradients).sqrt())
        clip(gradients, norm, LIMIT)
        self.optimizer.step()
        return {"norm": norm}

    def loss(self, total: Tensor) -> Tensor:
        """A mean over the counted tokens of all ranks, as gradients are summed."""
        return total / (self.case.size - 3)


def context_gathered(case: Case) -> Made:
    """Right: keys and values are gathered."""
    parts = ContextStep(case, gathering)
    return parts.model, parts.step


def context_in_a_ring(case: Case) -> Made:
    """Right: keys and values go round."""
    parts = ContextStep(case, ring)
    return parts.model, parts.step


class OwnTokens(ContextStep):
    """The mean over the rank's own tokens, then over ranks."""

    def loss(self, total: Tensor) -> Tensor:
        """The loss of a rank: on one with few counted tokens each of these weighs more."""
        return total / self.counted.sum() / self.case.world_size


def loss_of_own_tokens(case: Case) -> Made:
    """A mean of means."""
    parts = OwnTokens(case, gathering)
    return parts.model, parts.step


def forgetting(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Other ranks' keys and values without a way back for their gradients."""
    every = gathered(torch.cat([keys, values], 1)).detach().clone()
    start = dist.get_rank() * len(queries)
    every[start : start + len(queries)] = torch.cat([keys, values], 1)
    return _weights(queries, every[:, :WIDTH], start).softmax(1) @ every[:, WIDTH:]


def keys_without_their_gradients(case: Case) -> Made:
    """``all_gather`` cuts the graph, and the own part alone is put back."""
    parts = ContextStep(case, forgetting)
    return parts.model, parts.step


SIZES = (2, 4)
DECIDES = frozenset({"decides"})

MUTANTS = (
    # Megatron-LM#7452
    Mutant(
        TrainStep(loss_of_own_tokens, DECIDES), "MOD-02", "a loss of each rank's own tokens", SIZES
    ),
    Mutant(
        TrainStep(keys_without_their_gradients, DECIDES),
        "MOD-02",
        "keys that are gathered without their gradients",
        SIZES,
    ),
)

BENIGN_VARIANTS = (
    BenignVariant(TrainStep(context_gathered, DECIDES), "a sequence on ranks, gathered", SIZES),
    BenignVariant(TrainStep(context_in_a_ring, DECIDES), "a sequence on ranks, in a ring", SIZES),
)
