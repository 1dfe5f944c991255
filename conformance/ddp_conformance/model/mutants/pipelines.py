"""MOD-02: a pipeline of two stages, of which both have the tied weight."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import SGD

from ddp_conformance.framework.case import Case
from ddp_conformance.framework.mutants import BenignVariant, Mutant
from ddp_conformance.model.mutants.moving import clip, square, summed_over_ranks
from ddp_conformance.model.mutants.step_mutants import RATE
from ddp_conformance.model.subjects import TrainStep

WORDS, WIDTH, LIMIT = 5, 4, 0.05
FIRST, LAST = 0, 1
"""The stages, and their ranks."""

Made = tuple[nn.Module, Callable[[int], Mapping[str, float]]]


class Stages(nn.Module):
    """Words in, words out; one process has both stages, whose matrices of words are one."""

    def __init__(self, stages: tuple[int, ...]) -> None:
        super().__init__()
        torch.manual_seed(7)
        embed, enter = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH)
        leave, head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        with torch.no_grad():
            head.weight.copy_(embed.weight)
        if FIRST in stages:
            self.embed, self.enter = embed, enter
        if LAST in stages:
            self.leave, self.head = leave, head
        if len(stages) == 2:
            self.head.weight = self.embed.weight

    def first(self, words: Tensor) -> Tensor:
        """The first stage."""
        hidden: Tensor = self.enter(self.embed(words)).tanh()
        return hidden

    def last(self, hidden: Tensor) -> Tensor:
        """The second stage."""
        out: Tensor = self.head(self.leave(hidden).tanh())
        return out


def words_of(number: int, samples: range) -> tuple[Tensor, Tensor]:
    """Words and those that follow them."""
    words = torch.tensor([(3 * number + sample * sample) % WORDS for sample in samples])
    return words, (2 * words + number) % WORDS


class StageStep:
    """A step of two micro-batches, each a share of the mean over all samples."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.alone = case.world_size == 1
        self.model = Stages((FIRST, LAST) if self.alone else (case.rank,))
        self.optimizer = SGD(self.model.parameters(), RATE, momentum=0.5)

    def step(self, number: int) -> Mapping[str, float]:
        """Reports the norm by which it clips."""
        self.optimizer.zero_grad()
        half = self.case.size // 2
        for samples in self.micro_batches(range(half), range(half, self.case.size)):
            self.micro_batch(*words_of(number, samples))
        self.reduce_tied()
        norm = self.norm()
        clip([p.grad for p in self.model.parameters()], norm, LIMIT)
        self.optimizer.step()
        return {"norm": norm}

    def micro_batches(self, *batches: range) -> tuple[range, ...]:
        """Each once."""
        return batches

    def micro_batch(self, words: Tensor, following: Tensor) -> None:
        """Forward and backward through both stages."""
        if self.alone:
            self.loss(self.model.last(self.model.first(words)), following).backward()
        elif self.case.rank == FIRST:
            hidden = self.model.first(words)
            dist.send(hidden.detach(), LAST)
            gradient = torch.empty_like(hidden)
            dist.recv(gradient, LAST)
            torch.autograd.backward(hidden, gradient)
        else:
            came = torch.empty(len(words), WIDTH)
            dist.recv(came, FIRST)
            came.requires_grad_()
            self.loss(self.model.last(came), following).backward()
            gradient_of_input: Any = came.grad
            dist.send(gradient_of_input, FIRST)

    def loss(self, out: Tensor, following: Tensor) -> Any:
        """The micro-batch's share of the mean."""
        return nn.functional.cross_entropy(out, following, reduction="sum") / self.case.size

    def reduce_tied(self) -> None:
        """Both stages have the sum of the matrix's two gradients."""
        if not self.alone:
            dist.all_reduce(self.tied.grad)

    @property
    def tied(self) -> Any:
        """The matrix, which both stages have."""
        first = self.alone or self.case.rank == FIRST
        return self.model.embed.weight if first else self.model.head.weight

    def norm(self) -> float:
        """The norm in which the matrix counts once."""
        if self.alone:
            return float(square(p.grad for p in self.model.parameters()).sqrt())
        counted = [
            p for p in self.model.parameters() if self.case.rank == FIRST or p is not self.tied
        ]
        return float(summed_over_ranks(square(p.grad for p in counted)).sqrt())


def pipeline_with_tied_weight(case: Case) -> Made:
    """Right."""
    parts = StageStep(case)
    return parts.model, parts.step


class UntiesWeight(StageStep):
    """Each stage goes on with its own half of the gradient."""

    def reduce_tied(self) -> None:
        """Nothing is reduced."""


def tied_weight_split(case: Case) -> Made:
    """Two matrices that begin as one."""
    parts = UntiesWeight(case)
    return parts.model, parts.step


class CountsLastTwice(StageStep):
    """The schedule ends with a micro-batch that it has had."""

    def micro_batches(self, *batches: range) -> tuple[range, ...]:
        """The last one twice."""
        return batches if self.alone else (*batches, batches[-1])


def last_micro_batch_twice(case: Case) -> Made:
    """Take the last micro-batch twice, as where a drain of the pipeline starts one place too
    early.
    """
    parts = CountsLastTwice(case)
    return parts.model, parts.step


class CountsTiedTwice(StageStep):
    """The matrix counts on both stages."""

    def norm(self) -> float:
        """The norm of all that the stages have."""
        own = square(p.grad for p in self.model.parameters())
        return float((own if self.alone else summed_over_ranks(own)).sqrt())


def norm_counts_tied_twice(case: Case) -> Made:
    """Clipped too early."""
    parts = CountsTiedTwice(case)
    return parts.model, parts.step


class MoreMicroBatches(StageStep):
    """Three micro-batches of unlike sizes on ranks, each a share of the same mean."""

    def micro_batches(self, *batches: range) -> tuple[range, ...]:
        """Micro-batches by another cut of the same samples."""
        size = self.case.size
        cut = (range(1), range(1, 3), range(3, size))
        return batches if self.alone else cut


def unlike_micro_batches(case: Case) -> Made:
    """More passes than one process makes."""
    parts = MoreMicroBatches(case)
    return parts.model, parts.step


TWO = (2,)
DECIDES = frozenset({"decides"})

MUTANTS = (
    # NeMo-RL#227, #264
    Mutant(TrainStep(tied_weight_split, DECIDES), "MOD-02", "a tied weight split", TWO),
    Mutant(TrainStep(last_micro_batch_twice, DECIDES), "MOD-02", "the last micro-batch twice", TWO),
    Mutant(
        TrainStep(norm_counts_tied_twice, DECIDES), "MOD-08", "a norm with a tied weight twice", TWO
    ),
)

BENIGN_VARIANTS = (
    BenignVariant(
        TrainStep(pipeline_with_tied_weight, DECIDES), "a pipeline with a tied weight", TWO
    ),
    BenignVariant(TrainStep(unlike_micro_batches, DECIDES), "micro-batches of unlike sizes", TWO),
)
