"""A lock that exactly one rank can take."""

from __future__ import annotations

import time
from contextlib import contextmanager

import pytest
import torch.distributed as dist


@contextmanager
def locked(path):
    deadline = time.monotonic() + 30
    while True:
        try:
            path.touch(exist_ok=False)
            break
        except FileExistsError:
            assert time.monotonic() < deadline, f"{path} was never released"
            time.sleep(0.01)
    try:
        yield
    finally:
        path.unlink()


@pytest.mark.ddp(world_size=2)
def test_counter(ddp, tmp_path):
    counter = tmp_path / "counter.txt"
    if ddp.rank == 0:
        counter.write_text("0")
    dist.barrier()
    with locked(tmp_path / "counter.lock"):
        count = int(counter.read_text())
        counter.write_text(str(count + 1))
    dist.barrier()
    assert int(counter.read_text()) == ddp.world_size
