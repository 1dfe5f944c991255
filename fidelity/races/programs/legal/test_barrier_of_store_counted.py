"""Each barrier on the store has a key of its own."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _store_based_barrier
from training import evaluate


class ParameterServer:
    def __init__(self, folder):
        self.folder = folder
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.barriers = 0
        self.store = dist.FileStore(str(folder / "store"), self.world_size)

    def barrier(self):
        self.barriers += 1
        name = f"parameter_server:{self.barriers}"
        _store_based_barrier(self.rank, self.store, name, self.world_size, timedelta(seconds=60))

    def update(self, version):
        if self.rank == 0:
            torch.save(torch.full((4,), version), self.folder / "weights.pt")
        self.barrier()
        return torch.load(self.folder / "weights.pt")


@pytest.mark.ddp(world_size=3)
def test_updates(ddp, tmp_path):
    server = ParameterServer(tmp_path)
    for version in range(2):
        assert server.update(version).tolist() == [version] * 4
        dist.barrier()
        if ddp.rank != 0:
            evaluate(12)
