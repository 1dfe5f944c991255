"""Two ranks write a replica each; the third finds none if both are late."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from training import evaluate


def load_any(*paths):
    for path in paths:
        if path.exists():
            return torch.load(path)
    raise FileNotFoundError(f"no replica of {len(paths)}")


@pytest.mark.ddp(world_size=3)
def test_replicas(ddp, tmp_path):
    replicas = [tmp_path / f"replica-{rank}" / "state.pt" for rank in range(2)]
    if ddp.rank < 2:
        replicas[ddp.rank].parent.mkdir()
        temporary = replicas[ddp.rank].with_suffix(".tmp")
        torch.save({"step": 7}, temporary)
        temporary.rename(replicas[ddp.rank])
    else:
        evaluate(20)
        assert load_any(*replicas)["step"] == 7
    dist.barrier()
