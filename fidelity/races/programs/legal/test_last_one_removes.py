"""Ranks count themselves in a store when they have read; the last one removes the file."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist


@pytest.mark.ddp(world_size=3)
def test_last_reader(ddp, tmp_path):
    store = dist.FileStore(str(tmp_path / "store"), ddp.world_size)
    path = tmp_path / "broadcast.pt"
    if ddp.rank == 0:
        torch.save(torch.ones(4), path)
        store.set("written", "yes")
    store.wait(["written"])
    assert torch.load(path).sum() == 4
    is_last = store.add("readers", 1) == ddp.world_size
    if is_last:
        path.unlink()
    assert sum(ddp.gather(is_last)) == 1
