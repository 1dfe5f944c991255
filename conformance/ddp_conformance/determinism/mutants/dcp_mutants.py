"""DET-06 and DET-07: loops that save by torch's distributed checkpoint.

What differs between ranks comes to harm there under one key. A key is one value: of plain tensors
that of rank 0 comes back on all ranks, and of numbers that of one of them, without a word (seen
with torch 2.13).
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from ddp_conformance.determinism.mutants.moving_mutants import ALL, SIZES, Moves
from ddp_conformance.determinism.subjects import TrainLoop
from ddp_conformance.framework.mutants import BenignVariant, Mutant


class ByDcp(Moves):
    """Saves a folder by ``torch.distributed.checkpoint``, with a key of each rank's own."""

    def save(self, path: Path) -> None:
        with warnings.catch_warnings(action="ignore"):  # torch's, of its own code
            save(self.state(), checkpoint_id=path, no_dist=not dist.is_initialized())

    def state(self) -> dict[str, Any]:
        """What this rank saves: a value for each key."""
        return {
            **{f"model.{name}": tensor for name, tensor in self.bare.state_dict().items()},
            **{f"momentum.{i}": tensor for i, tensor in enumerate(self.momenta())},
            "epoch": self.epoch,
            "step": self.step,
            f"rank.{self.case.rank}": pickle.dumps(self.own()),
        }

    def momenta(self) -> list[Tensor]:
        """The momenta of all parameters; zero before the first step."""
        state = self.optimizer.state
        zero = {p: torch.zeros_like(p) for p in self.bare.parameters()}
        return [state.get(p, {}).get("momentum_buffer", zero[p]) for p in zero]

    def read(self, path: Path) -> Any:
        keys = FileSystemReader(path).read_metadata().state_dict_metadata
        state = {key: self.like(key) for key in keys}
        with warnings.catch_warnings(action="ignore"):
            load(state, checkpoint_id=path, no_dist=not dist.is_initialized())
        return self.content_of(state)

    def like(self, key: str) -> Any:
        """What is read in place of it: a tensor, or anything for what is none."""
        kind, _, name = key.partition(".")
        if kind == "momentum":
            return torch.zeros_like(self.momenta()[int(name.partition(".")[0])])
        return torch.zeros_like(self.bare.state_dict()[name]) if kind == "model" else b""

    def content_of(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """The content of a checkpoint as one mapping, from which it is loaded."""
        momenta = [state[f"momentum.{i}"] for i in range(len(self.momenta()))]
        buffers = {i: {"momentum_buffer": tensor} for i, tensor in enumerate(momenta)}
        number = sum(key.startswith("rank.") for key in state)
        return {
            "model": {name: state[f"model.{name}"] for name in self.bare.state_dict()},
            "optimizer": {**self.optimizer.state_dict(), "state": buffers},
            "epoch": state["epoch"],
            "step": state["step"],
            "ranks": [pickle.loads(state[f"rank.{rank}"]) for rank in range(number)],
        }


class InManyFiles(ByDcp):
    """A file for each tensor, in place of one for each rank."""

    def save(self, path: Path) -> None:
        writer = FileSystemWriter(path, single_file_per_rank=False)
        with warnings.catch_warnings(action="ignore"):
            save(self.state(), storage_writer=writer, no_dist=not dist.is_initialized())


class BeginsAnewByDcp(InManyFiles):
    """Takes each error of a load for a first start. All ranks have it, as torch tells all."""

    def read(self, path: Path) -> Any:
        fresh = self.content()
        try:
            return super().read(path)
        except CheckpointException:
            return fresh


class CursorOfEach(ByDcp):
    """Each rank reads in strides, and saves where in the order of all samples it reads next."""

    cursor: int | None = None

    def own(self) -> dict[str, Any]:
        return {**super().own(), "cursor": self.next_sample()}

    def next_sample(self) -> int:
        """This rank's next sample, in the order of all."""
        return self.step * self.global_batch() + self.offset()

    def offset(self) -> int:
        """The place in each step from which this rank reads."""
        return self.case.rank if self.cursor is None else self.cursor % self.global_batch()

    def batches(self) -> list[list[int]]:
        order, ws, batch = self.order(), self.case.world_size, self.global_batch()
        starts = range(0, len(order), batch)
        return [order[start : start + batch][self.offset() :: ws] for start in starts]

    def content_of(self, state: Mapping[str, Any]) -> dict[str, Any]:
        content = super().content_of(state)
        self.cursor = self.cursor_in(state, content["ranks"])
        return content

    def cursor_in(self, state: Mapping[str, Any], ranks: Any) -> int:
        """The rank's own cursor; one that all ranks' follow from, if others have saved."""
        same = len(ranks) == self.case.world_size
        first = int(ranks[0]["cursor"])
        return int(ranks[self.case.rank]["cursor"]) if same else first + self.case.rank


class CursorUnderOneKey(CursorOfEach):
    """Under one key for all.

    prime-rl#1035.
    """

    def state(self) -> dict[str, Any]:
        return {**super().state(), "cursor": self.next_sample()}

    def cursor_in(self, state: Mapping[str, Any], ranks: Any) -> int:
        return int(state["cursor"])


class MomentumOfEach(ByDcp):
    """Each rank has a momentum of its own gradients, and all step with the mean of these.

    The mean is the momentum of the mean gradient. With other ranks, each goes on with the mean.
    """

    def wrap(self, model: nn.Module) -> nn.Module:
        self.own_momenta = [torch.zeros_like(p) for p in model.parameters()]
        return model

    def make_optimizer(self) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        optimizer.register_step_pre_hook(lambda *_: self.exchange())
        return optimizer

    def exchange(self) -> None:
        """Exchange gradients before a step."""
        for momentum, parameter in zip(self.own_momenta, self.model.parameters(), strict=True):
            assert parameter.grad is not None
            momentum.mul_(0.9).add_(parameter.grad)
            parameter.grad.copy_(momentum)
            if dist.is_initialized():
                dist.all_reduce(parameter.grad)
                parameter.grad /= self.case.world_size

    def momenta(self) -> list[Tensor]:
        return self.own_momenta

    def state(self) -> dict[str, Any]:
        state = super().state()
        for i in range(len(self.own_momenta)):
            state[f"momentum.{i}.{self.case.rank}"] = state.pop(f"momentum.{i}")
        return state

    def content_of(self, state: Mapping[str, Any]) -> dict[str, Any]:
        places = range(len(self.own_momenta))
        self.own_momenta = [self.momentum_in(state, i) for i in places]
        shown = {f"momentum.{i}": self.own_momenta[i] for i in places}
        content = super().content_of({**state, **shown})
        return {**content, "optimizer": self.optimizer.state_dict()}

    def momentum_in(self, state: Mapping[str, Any], i: int) -> Tensor:
        """The momentum of one parameter."""
        found = [v for key, v in sorted(state.items()) if key.startswith(f"momentum.{i}.")]
        same = len(found) == self.case.world_size
        return found[self.case.rank] if same else torch.stack(found).mean(0)


class MomentumUnderOneKey(MomentumOfEach):
    """Under one key for all."""

    def state(self) -> dict[str, Any]:
        return ByDcp.state(self)

    def momentum_in(self, state: Mapping[str, Any], i: int) -> Tensor:
        tensor: Tensor = state[f"momentum.{i}"]
        return tensor


MUTANTS = (
    Mutant(TrainLoop(MomentumUnderOneKey, ALL), "DET-06", "a tensor under one key", SIZES),
    Mutant(TrainLoop(CursorUnderOneKey, ALL), "DET-06", "a number under one key", SIZES),
    Mutant(TrainLoop(BeginsAnewByDcp, ALL), "DET-07", "begins anew", (2, 4)),
)

BENIGN_VARIANTS = (
    BenignVariant(TrainLoop(ByDcp, ALL), "one value under each key", SIZES),
    BenignVariant(TrainLoop(InManyFiles, ALL), "more than eight files", (4,)),
    BenignVariant(TrainLoop(MomentumOfEach, ALL), "a tensor under a key of each rank", SIZES),
    BenignVariant(TrainLoop(CursorOfEach, ALL), "a number of each rank", SIZES),
)
