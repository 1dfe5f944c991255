"""Whoever creates the file first downloads; the others wait for what it has downloaded."""

from __future__ import annotations

import os
import time

import pytest
import torch.distributed as dist


def download(path):
    try:
        os.close(os.open(path.with_suffix(".claim"), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    path.with_suffix(".part").write_text("weights")
    path.with_suffix(".part").rename(path)
    return True


@pytest.mark.ddp(world_size=3)
def test_download_once(ddp, tmp_path):
    path = tmp_path / "weights.bin"
    won = download(path)
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline, "nobody has downloaded"
        time.sleep(0.01)
    assert path.read_text() == "weights"
    assert sum(ddp.gather(won)) == 1
    dist.barrier()
