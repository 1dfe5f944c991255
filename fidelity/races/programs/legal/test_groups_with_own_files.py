"""Each group has a file of its own, and a barrier of its own for it."""

from __future__ import annotations

import pytest
import torch.distributed as dist


@pytest.mark.ddp(world_size=3)
def test_pair_and_single(ddp, tmp_path):
    pair, single = dist.new_group([0, 1]), dist.new_group([2])
    group, leader = (single, 2) if ddp.rank == 2 else (pair, 0)
    path = tmp_path / f"leader-{leader}.txt"
    if ddp.rank == leader:
        path.write_text("ready")
    dist.barrier(group=group)
    assert path.read_text() == "ready"
    dist.barrier(group=group)
    if ddp.rank == leader:
        path.unlink()
