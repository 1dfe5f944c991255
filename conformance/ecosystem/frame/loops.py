"""A training loop for whatever saves and resumes it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from ddp_conformance import Case, Leg, Watch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW, Optimizer

from conformance.ecosystem.frame.models import Net

GLOBAL_BATCH = 12
"""Samples of a step, over all of one, two or three ranks."""


class Loop:
    """Steps over equally many samples whatever the number of ranks; in a file of rank 0.

    A subclass saves and loads, and may read other batches.
    """

    def __init__(self, case: Case, leg: Leg, watch: Watch) -> None:
        self.case, self.leg, self.watch = case, leg, watch
        self.epoch = self.batches = self.steps = 0
        torch.manual_seed(3)
        self.model = self.wrapped(Net())
        self.optimizer = optimizer_of(self.model)
        seed_rank(case.rank)

    def wrapped(self, model: nn.Module) -> nn.Module:
        return DistributedDataParallel(model) if dist.is_initialized() else model

    def save(self, path: Any) -> None:
        """Write a checkpoint; called on all ranks."""
        raise NotImplementedError

    def load(self, path: Any) -> None:
        """Go on from a checkpoint; called on all ranks."""
        raise NotImplementedError

    def batches_left(self) -> Iterator[tuple[Sequence[int], int]]:
        """This rank's samples in each further step of the epoch, and how many all ranks have."""
        generator = torch.Generator().manual_seed(self.epoch)
        order = torch.randperm(self.case.size, generator=generator).tolist()
        for start in range(self.batches * GLOBAL_BATCH, self.case.size, GLOBAL_BATCH):
            batch = order[start : start + GLOBAL_BATCH]
            yield batch[self.case.rank :: self.case.world_size], len(batch)

    def run(self) -> None:
        """Make the whole leg."""
        if self.leg.resume is not None:
            self.load(self.leg.resume)
        self.watch.begin(self.model, self.case.dataset)
        self._save_if_asked()
        while self.epoch < self.leg.epochs and self._train_epoch():
            self.epoch, self.batches = self.epoch + 1, 0
        if self.leg.save is not None:
            self.save(self.leg.save)
        self.watch.end(self.model)

    def _train_epoch(self) -> bool:
        """False if the leg ends in it."""
        total = torch.zeros(())
        for indices, number in self.batches_left():
            losses = losses_of(self.model, indices)
            # DDP and FSDP2 divide the sum over ranks by their number.
            (losses.sum() * self.case.world_size / number).backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            self.optimizer.zero_grad()
            total += losses.detach().sum()
            self.batches, self.steps = self.batches + 1, self.steps + 1
            self.watch.step(self.epoch, indices)
            self._save_if_asked()
            if self.steps == self.leg.steps:
                return False
        if dist.is_initialized():
            dist.all_reduce(total)
        self.watch.epoch(self.epoch, total.item() / self.case.size)
        return True

    def _save_if_asked(self) -> None:
        if self.steps in self.leg.save_at:
            self.save(self.leg.save_at[self.steps])


def losses_of(model: nn.Module, indices: Sequence[int]) -> Tensor:
    """The loss of each sample: [samples]."""
    points = torch.sin(torch.tensor(indices)[:, None] * torch.arange(1.0, 4.0) + 1)
    losses: Tensor = (model(points).squeeze(1) - points.sum(1)).square()
    return losses


def optimizer_of(model: nn.Module) -> Optimizer:
    """A group that decays, and one that does not."""
    parameters = [*model.parameters()]
    matrices = [parameter for parameter in parameters if parameter.dim() > 1]
    vectors = [parameter for parameter in parameters if parameter.dim() < 2]
    return AdamW([{"params": matrices}, {"params": vectors, "weight_decay": 0.0}], lr=0.01)


def seed_rank(rank: int) -> None:
    """Each rank draws numbers of its own."""
    random.seed(rank)
    np.random.seed(rank)
    torch.manual_seed(rank)


def random_states() -> Any:
    """The random states of all ranks, in their order; a collective."""
    own = random.getstate(), np.random.get_state(), torch.get_rng_state()
    if not dist.is_initialized():
        return [own]
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, own)
    return everyone


def restore(states: Sequence[Any], case: Case) -> None:
    """Take this rank's of the states; its own are as good where there are more ranks or fewer."""
    if len(states) != case.world_size:
        return
    python, numpy, torchs = states[case.rank]
    random.setstate(python)
    np.random.set_state(numpy)
    torch.set_rng_state(torchs)
