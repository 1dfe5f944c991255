"""Ranks count under a lock of the operating system."""

from __future__ import annotations

import fcntl

import pytest
import torch.distributed as dist


@pytest.mark.ddp(world_size=3)
def test_counter(ddp, tmp_path):
    counter = tmp_path / "counter.txt"
    if ddp.rank == 0:
        counter.write_text("0")
    dist.barrier()
    for _ in range(3):
        with open(tmp_path / "counter.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            count = int(counter.read_text())
            counter.write_text(str(count + 1))
    dist.barrier()
    assert int(counter.read_text()) == 9
