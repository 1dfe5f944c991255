"""Ranks measure how long a step takes, and compare what they have measured."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist
from training import evaluate


@pytest.mark.ddp(world_size=3)
def test_slowest_rank(ddp, tmp_path):
    began = time.perf_counter()
    evaluate(3)
    taken = time.perf_counter() - began
    (tmp_path / f"timing-{ddp.rank}.txt").write_text(f"{taken:.3f}")
    times = ddp.gather(taken)
    slowest = torch.tensor(taken, dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    assert slowest.item() == max(times)
    assert len({path.name for path in tmp_path.iterdir()}) == ddp.world_size
