"""All have loaded the checkpoint when rank 0 removes it."""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel
from training import MLP, evaluate


@contextmanager
def rank_temp_file(folder):
    names = [None]
    if dist.get_rank() == 0:
        handle, names[0] = tempfile.mkstemp(dir=folder)
        os.close(handle)
    dist.broadcast_object_list(names)
    try:
        yield names[0]
    finally:
        dist.barrier()
        if dist.get_rank() == 0:
            os.remove(names[0])


def post_local_sgd(model, warmup):
    averager = PeriodicModelAverager(period=4, warmup_steps=warmup)
    return PostLocalSGDOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), averager)


@pytest.mark.ddp(world_size=3)
def test_reload(ddp, tmp_path):
    model = DistributedDataParallel(MLP())
    optimizer = post_local_sgd(model, warmup=10)
    for _ in range(3):
        model(torch.randn(4, 16)).sum().backward()
        optimizer.step()
    with rank_temp_file(tmp_path) as path:
        if ddp.rank == 0:
            torch.save({"optimizer_state_dict": optimizer.state_dict()}, path)
        dist.barrier()
        checkpoint = torch.load(path)
        again = post_local_sgd(model, warmup=0)
        again.load_state_dict(checkpoint["optimizer_state_dict"])
        assert again.averager.step == optimizer.averager.step
        if ddp.rank == 0:
            evaluate(25)
