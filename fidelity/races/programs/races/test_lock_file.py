"""A lock that is looked for and then taken: two ranks have it if both are late inside."""

from __future__ import annotations

import time
from contextlib import contextmanager

import pytest
import torch.distributed as dist


@contextmanager
def locked(path):
    deadline = time.monotonic() + 30
    while path.exists():
        assert time.monotonic() < deadline, f"{path} was never released"
        time.sleep(0.01)
    path.touch()
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


@pytest.mark.ddp(world_size=2)
def test_counter(ddp, tmp_path):
    counter = tmp_path / "counter.txt"
    if ddp.rank == 0:
        counter.write_text("0")
    dist.barrier()
    time.sleep(0.2 * ddp.rank)
    with locked(tmp_path / "counter.lock"):
        count = int(counter.read_text())
        counter.write_text(str(count + 1))
    dist.barrier()
    assert int(counter.read_text()) == ddp.world_size
