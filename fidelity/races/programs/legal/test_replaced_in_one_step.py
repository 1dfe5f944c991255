"""There is a checkpoint at any time."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from training import evaluate


@pytest.mark.ddp(world_size=2)
def test_last_checkpoint(ddp, tmp_path):
    path = tmp_path / "last.ckpt"
    if ddp.rank == 0:
        torch.save({"step": 0}, path)
    dist.barrier()
    if ddp.rank == 0:
        evaluate(20)
        torch.save({"step": 1}, tmp_path / "new.ckpt")
        (tmp_path / "new.ckpt").replace(path)
    else:
        assert torch.load(path)["step"] in (0, 1)
    dist.barrier()
