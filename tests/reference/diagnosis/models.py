"""Factories that the tools are pointed at, by name."""

import ctypes
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn


class Crashing(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        ctypes.string_at(0)
        return values


class Mismatched(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, values: Tensor) -> Tensor:
        out: Tensor = self.layer(values)
        return out


LINEAR = partial(nn.Linear, 4, 4)


def sound() -> object:
    return [LINEAR, nn.ReLU, LINEAR], (torch.ones(2, 4),)


def crashing() -> object:
    return [LINEAR, nn.ReLU, LINEAR, Crashing, LINEAR, LINEAR], (torch.ones(2, 4),)


def mismatched() -> object:
    return [Mismatched, LINEAR], (torch.ones(2, 4),)


class InPlace(nn.Module):
    """What the design documents of training scripts suspect, and what is really harmful."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.ones(4))
        self.register_buffer("calls", torch.zeros(1))
        self.norm = nn.BatchNorm1d(4)
        self.calls: Tensor

    def forward(self, values: Tensor) -> Tensor:
        hidden: Tensor = self.norm(self.layer(values)).relu_()
        hidden[:, 0] = 1.0
        self.calls.add_(1)
        self.write()
        return hidden.add_(self.scale)

    def write(self) -> None:
        """Nothing, in a sound model."""


class WritesByRank(InPlace):
    def write(self) -> None:
        self.scale.data.mul_(1 + 0.1 * dist.get_rank())


class WritesAlike(InPlace):
    def write(self) -> None:
        with torch.no_grad():
            self.scale.clamp_(max=0.5)


class WritesUnseen(InPlace):
    def write(self) -> None:
        self.scale.detach().numpy()[0] = 7.0


def by_rank() -> object:
    return WritesByRank(), (torch.ones(2, 4),)


def harmless() -> object:
    return InPlace(), (torch.ones(2, 4),)
