"""Rank 0 takes messages of any rank, and puts each in the place of its source."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from training import evaluate


@pytest.mark.ddp(world_size=3)
def test_losses(ddp):
    if ddp.rank == 0:
        losses = {}
        for _ in range(1, ddp.world_size):
            loss = torch.zeros(())
            source = dist.recv(loss)
            losses[source] = loss.item()
        assert losses == {1: 1.0, 2: 2.0}
    else:
        evaluate(15 * (ddp.rank - 1) or 1)
        dist.send(torch.full((), float(ddp.rank)), dst=0)
    dist.barrier()
