"""A small training loop that is right, in parts that its mutants replace one at a time."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from ddp_conformance.determinism.subjects import Leg, Watch
from ddp_conformance.framework.case import Case, IndexDataset

GLOBAL_BATCH = 12
"""Samples of a step over all ranks: a multiple of 1, 2, 3 and 4."""
SEED = 7


class Loop:
    """A linear fit, with momentum, of samples that are a function of their index."""

    def __init__(self, case: Case, leg: Leg, watch: Watch) -> None:
        self.case, self.leg, self.watch = case, leg, watch
        self.seed = self.common_seed()
        self.dataset = self.make_dataset()
        self.model = self.wrap(self.make_model().to(self.device()))
        self.optimizer = self.make_optimizer()
        self.seed_rank()
        self.epoch = self.step = 0
        self.loss = 0.0
        if leg.resume is not None:
            self.load(self.read(leg.resume))
        watch.begin(self.model, self.dataset)
        self.save_on_the_way()
        self.train()
        if leg.save is not None:
            self.save(leg.save)
        watch.end(self.model)

    # ------------------------------------------------------------------ what is made

    def device(self) -> torch.device:
        """Where it trains."""
        return torch.device("cpu")

    def common_seed(self) -> int:
        """The seed of the parameters and the order."""
        return SEED

    def make_dataset(self) -> IndexDataset:
        """The samples."""
        return IndexDataset(self.case.size)

    def make_model(self) -> nn.Module:
        """The same on all ranks."""
        torch.manual_seed(self.seed)
        return nn.Linear(2, 1)

    def wrap(self, model: nn.Module) -> nn.Module:
        """DDP where there are ranks."""
        return DistributedDataParallel(model) if dist.is_initialized() else model

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Make the optimizer of the wrapped model."""
        return torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)

    def seed_rank(self) -> None:
        """Give each rank other random numbers, for augmentation."""
        self.seed_all(100 * SEED + self.case.rank)

    def seed_all(self, seed: int) -> None:
        """All three generators."""
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)

    # ------------------------------------------------------------------ what is delivered

    def order(self) -> list[int]:
        """All samples, as this epoch has them."""
        generator = torch.Generator().manual_seed(1000 * self.seed + self.epoch)
        return torch.randperm(self.case.size, generator=generator).tolist()

    def batches(self) -> list[list[int]]:
        """The steps of this epoch: this rank's share of each."""
        order, ws, batch = self.order(), self.case.world_size, self.global_batch()
        starts = range(0, len(order), batch)
        return [order[start : start + batch][self.case.rank :: ws] for start in starts]

    def batches_left(self) -> list[list[int]]:
        """The batches from where this epoch stands."""
        return self.batches()[self.step :]

    def global_batch(self) -> int:
        """Samples of a step over all ranks."""
        return GLOBAL_BATCH

    def loader(self) -> Iterator[Any]:
        """What is left of this epoch."""
        return iter(
            DataLoader(
                self.dataset,
                batch_sampler=self.batches_left(),
                num_workers=self.case.num_workers,
                # The loader draws a seed for its workers; not from the rank's own generator,
                # or a resumed epoch, which draws once more, would go on from another state.
                generator=torch.Generator().manual_seed(self.epoch),
            )
        )

    # ------------------------------------------------------------------ training

    def train(self) -> None:
        """Train to the end of the leg."""
        while self.epoch < self.leg.epochs:
            for batch in self.loader():
                self.update(batch["index"])
                self.save_on_the_way()
                if self.leg.steps and self.steps_done() >= self.leg.steps:
                    return
            self.watch.epoch(self.epoch, self.mean_loss())
            self.epoch, self.step, self.loss = self.epoch + 1, 0, 0.0

    def steps_done(self) -> int:
        """The number of steps in all epochs."""
        return self.epoch * len(self.batches()) + self.step

    def update(self, index: Tensor) -> None:
        """One step. The gradient is that of the mean over all ranks' samples."""
        losses = self.losses(index)
        in_step = self.samples_in_step()
        self.optimizer.zero_grad()
        (losses.sum() * self.case.world_size / in_step).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.loss += losses.sum().item()
        self.step += 1
        self.watch.step(self.epoch, index.tolist())

    def samples_in_step(self) -> int:
        """Over all ranks."""
        return min(self.global_batch(), self.case.size - self.step * self.global_batch())

    def losses(self, index: Tensor) -> Tensor:
        """The loss of each sample."""
        inputs = self.inputs(index.to(self.device()))
        wanted = inputs.sum(1, keepdim=True) ** 2
        losses: Tensor = ((self.model(inputs) - wanted) ** 2).squeeze(1)
        return losses

    def inputs(self, index: Tensor) -> Tensor:
        """The input of each sample."""
        return torch.stack([(index * 7 % 11) / 11, (index * 5 % 13) / 13], 1)

    def mean_loss(self) -> float:
        """The mean loss of the epoch, over all ranks."""
        total = torch.tensor(self.loss, dtype=torch.float64, device=self.device())
        if dist.is_initialized():
            dist.all_reduce(total)
        return total.item() / self.case.size

    # ------------------------------------------------------------------ checkpoints

    def save_on_the_way(self) -> None:
        """Save after this step, if that is wanted."""
        if (path := self.leg.save_at.get(self.steps_done())) is not None:
            self.save(path)

    def save(self, path: Path) -> None:
        """Save on rank 0, with what each rank has of its own."""
        content = self.content()
        if self.case.rank == 0:
            torch.save(content, path)

    def content(self) -> dict[str, Any]:
        """The content of a checkpoint."""
        own = self.own()
        everyone = [own]
        if dist.is_initialized():
            everyone = [own] * self.case.world_size
            dist.all_gather_object(everyone, own)
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "epoch": self.epoch,
            "step": self.step,
            "ranks": everyone,
        }

    def own(self) -> dict[str, Any]:
        """What each rank has of its own."""
        return {"rng": random_states(), "loss": self.loss}

    def read(self, path: Path) -> Any:
        """The content of a checkpoint."""
        return torch.load(path, "cpu", weights_only=False)

    def load(self, content: Any) -> None:
        """Restore the state of a checkpoint."""
        own = self.own_of(content["ranks"])
        self.model.load_state_dict(content["model"])
        self.optimizer.load_state_dict(content["optimizer"])
        self.epoch, self.step, self.loss = content["epoch"], content["step"], own["loss"]
        restore(own["rng"])

    def own_of(self, ranks: Any) -> Any:
        """What this rank has saved of its own."""
        return ranks[self.case.rank]


class ReadsByItself(Loop):
    """Has no workers, which take the longest, for defects that lie elsewhere."""

    def __init__(self, case: Case, leg: Leg, watch: Watch) -> None:
        super().__init__(replace(case, num_workers=0), leg, watch)


def random_states() -> Any:
    """The states of the generators of python, NumPy and torch."""
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def restore(states: Any) -> None:
    """What :func:`random_states` gave."""
    python, numpy, own = states
    random.setstate(python)
    np.random.set_state(numpy)
    torch.set_rng_state(own)
