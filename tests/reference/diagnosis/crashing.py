"""A training entry that dies on rank 1, in the way of its argument; started by crash_report."""

import ctypes
import os
import signal
import sys

import torch
import torch.distributed as dist
from ddp_reference.leaving import leave_group
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


def die() -> None:
    if dist.get_rank() == 1:
        ctypes.string_at(0)


class Model(nn.Module):
    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where
        self.layer = nn.Linear(2, 1)
        if where == "construction":
            die()

    def forward(self, values: Tensor) -> Tensor:
        if self.where == "forward":
            die()
        out: Tensor = self.layer(values)
        return out


class WrapsBadly(DistributedDataParallel):
    def _ddp_init_helper(self, *args: object, **kwargs: object) -> None:
        die()


def compiler(graph: object, inputs: object) -> object:
    die()
    return graph


def main(deed: str) -> None:
    if deed == "aborts":  # the other one ends in good order, as a program that saves its state
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    dist.init_process_group("gloo")
    second = dist.get_rank() == 1
    if deed == "aborts":
        dist.barrier()  # before it, a peer that still connects would raise
        os.abort() if second else signal.pause()
    model = Model(deed)
    wrapper = WrapsBadly if deed == "wrap" else DistributedDataParallel
    wrapped: nn.Module = wrapper(model)
    if deed == "compile":
        wrapped = torch.compile(wrapped, backend=compiler)  # type: ignore[assignment]
    if deed == "raises" and second:
        raise LookupError("no such shard")
    if deed == "silent" and second:
        os._exit(0)
    for _ in range(2):
        wrapped(torch.ones(1, 2)).sum().backward()
    # While a model outlives the group, its end may wait for a thread of gloo's without end.
    del model, wrapped
    leave_group()


if __name__ == "__main__":
    main(sys.argv[1])
