"""Each rank writes, lists, renames and removes files that only it knows."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist


@pytest.mark.ddp(world_size=3)
def test_scratch(ddp, tmp_path):
    scratch = tmp_path / f"rank-{ddp.rank}"
    scratch.mkdir()
    for number in range(5):
        torch.save(torch.full((2,), number), scratch / f"{number}.tmp")
        os.rename(scratch / f"{number}.tmp", scratch / f"{number}.pt")
    assert len(os.listdir(scratch)) == 5
    (scratch / "0.pt").unlink()
    total = sum(torch.load(path).sum() for path in scratch.glob("*.pt"))
    dist.all_reduce(total)
    assert total.item() == 20 * ddp.world_size
