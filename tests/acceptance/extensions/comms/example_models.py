"""Models of the inner suites beside this file, which is written next to them."""

import torch
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel


class Net(torch.nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def step(model, times=1):
    for _ in range(times):
        model(torch.ones(2, 8)).sum().backward()


def fsdp1():
    return FullyShardedDataParallel(
        Net(), auto_wrap_policy=ModuleWrapPolicy({torch.nn.Linear}), device_id=torch.device("cpu")
    )


def fsdp2(layers=2, **given):
    """Each layer is sharded, and then the whole."""
    model = Net(layers)
    for layer in model.layers:
        fully_shard(layer, **given)
    return fully_shard(model, **given)


def batch_norm():
    return DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))
    )


def tensor_parallel(mesh):
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))
    return parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
