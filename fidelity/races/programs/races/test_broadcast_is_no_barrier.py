"""The last rank removes, after a broadcast of rank 0, what rank 1 reads before it."""

from __future__ import annotations

import json

import pytest
import torch
import torch.distributed as dist
from training import evaluate


@pytest.mark.ddp(world_size=3)
def test_vocabulary(ddp, tmp_path):
    path = tmp_path / "vocabulary.json"
    if ddp.rank == 0:
        path.write_text(json.dumps({"a": 0, "b": 1}))
    dist.barrier()
    vocabulary = json.loads(path.read_text())
    lr = torch.zeros(())
    if ddp.rank == 0:
        lr.fill_(0.1)
    if ddp.rank == 2:
        evaluate(20)
    dist.broadcast(lr, src=0)
    if ddp.rank == 2:
        path.unlink()
    assert len(vocabulary) == 2
    assert lr.item() == pytest.approx(0.1)
