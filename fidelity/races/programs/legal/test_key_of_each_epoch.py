"""Rank 0 sets a key for each epoch, and others wait for that."""

from __future__ import annotations

import json

import pytest
import torch.distributed as dist
from training import evaluate


@pytest.mark.ddp(world_size=2)
def test_config_of_each_epoch(ddp, tmp_path):
    port = [None]
    if ddp.rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True)
        port = [store.port]
    dist.broadcast_object_list(port)
    if ddp.rank != 0:
        store = dist.TCPStore("127.0.0.1", port[0], is_master=False)
    for epoch in range(2):
        path = tmp_path / f"epoch-{epoch}.json"
        if ddp.rank == 0:
            path.write_text(json.dumps({"lr": 0.1 / (epoch + 1)}))
            store.set(f"config-{epoch}", "ready")
        else:
            store.wait([f"config-{epoch}"])
            assert json.loads(path.read_text())["lr"] == 0.1 / (epoch + 1)
            evaluate(15)
    dist.barrier()
