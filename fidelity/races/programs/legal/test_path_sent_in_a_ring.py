"""A rank reads the file of its neighbour, whose name it has received from there."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist


@pytest.mark.ddp(world_size=3)
def test_ring(ddp, tmp_path):
    after, before = (ddp.rank + 1) % ddp.world_size, (ddp.rank - 1) % ddp.world_size
    number = torch.tensor(ddp.rank * 10)
    torch.save(number, tmp_path / f"shard-{number.item()}.pt")
    received = torch.zeros_like(number)
    sent = dist.isend(number, dst=after)
    dist.recv(received, src=before)
    sent.wait()
    shard = torch.load(tmp_path / f"shard-{received.item()}.pt")
    assert shard.item() == before * 10
