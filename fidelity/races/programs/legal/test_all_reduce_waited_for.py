"""Rank 0 has waited for the collective, in which all take part, when it writes."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from training import evaluate


@pytest.mark.ddp(world_size=2)
def test_statistics(ddp, tmp_path):
    path = tmp_path / "statistics.pt"
    if ddp.rank == 0:
        torch.save({"epoch": 0}, path)
    dist.barrier()
    assert torch.load(path)["epoch"] == 0
    if ddp.rank == 0:
        evaluate(20)
    gradient = torch.ones(4)
    work = dist.all_reduce(gradient, async_op=True)
    work.wait()
    if ddp.rank == 0:
        torch.save({"epoch": 1}, path)
    assert gradient.tolist() == [2.0] * 4
    dist.barrier()
    assert torch.load(path)["epoch"] == 1
