"""Rank 0 leaves its TemporaryDirectory, which has the snapshot of all, while others read it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from training import evaluate


class Snapshot:
    """A snapshot of one tensor that is sharded by rows: each rank has written its shard."""

    def __init__(self, path):
        self.path = Path(path)

    @classmethod
    def take(cls, path, shard):
        paths = [path]
        dist.broadcast_object_list(paths)
        snapshot = cls(paths[0])
        torch.save(shard, snapshot.path / f"sharded_{dist.get_rank()}")
        dist.barrier()
        if dist.get_rank() == 0:
            (snapshot.path / ".snapshot_metadata").write_text(str(dist.get_world_size()))
        dist.barrier()
        return snapshot

    def read_object(self):
        world_size = int((self.path / ".snapshot_metadata").read_text())
        shards = [torch.load(self.path / f"sharded_{rank}") for rank in range(world_size)]
        return torch.cat(shards)

    def read_shard(self, out):
        out.copy_(torch.load(self.path / f"sharded_{dist.get_rank()}"))


@pytest.mark.ddp(world_size=3)
def test_read_sharded_tensor(ddp, tmp_path):
    torch.manual_seed(42 + ddp.rank)
    foo = torch.rand(20_000, 16)
    bar = torch.rand(20_000, 16)
    assert not torch.allclose(foo, bar)
    with tempfile.TemporaryDirectory(dir=tmp_path) as path:
        snapshot = Snapshot.take(path, foo)
        snapshot.read_shard(bar)
        baz = snapshot.read_object()
        if ddp.rank == 0:
            evaluate(20)
    assert torch.allclose(foo, bar)
    gathered = [torch.empty_like(foo) for _ in range(ddp.world_size)] if ddp.rank == 0 else None
    dist.gather(foo, gathered, dst=0)
    if ddp.rank == 0:
        assert torch.allclose(baz, torch.cat(gathered))
