"""Each rank cleans up what it finds, and does not mind if another one was faster."""

from __future__ import annotations

import shutil

import pytest
import torch
import torch.distributed as dist


@pytest.mark.ddp(world_size=3)
def test_cleanup(ddp, tmp_path):
    cache = tmp_path / "cache"
    cache.mkdir(exist_ok=True)
    for number in range(4):
        (cache / f"{ddp.rank}-{number}").touch()
    total = torch.ones(())
    dist.all_reduce(total)
    shutil.rmtree(cache, ignore_errors=True)
    (tmp_path / "lock").unlink(missing_ok=True)
    dist.barrier()
    assert total.item() == ddp.world_size
