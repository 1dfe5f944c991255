"""The link is moved when all shards of the checkpoint are written."""

from __future__ import annotations

import json
import os
import threading

import pytest
import torch
import torch.distributed as dist
from training import MLP, evaluate


class CheckpointManager:
    def __init__(self, folder):
        self.folder = folder
        self.threads = []

    def save(self, step, model):
        path = self.folder / f"step_{step}"
        path.mkdir(exist_ok=True)
        flush = threading.Thread(target=self.flush, args=(path, model.state_dict()))
        flush.start()
        self.threads.append(flush)

    def publish(self, step):
        self.threads.pop().join()
        dist.barrier()
        if dist.get_rank() == 0:
            path = self.folder / f"step_{step}"
            link = self.folder / "latest.tmp"
            link.symlink_to(path.name)
            os.replace(link, self.folder / "latest")

    def flush(self, path, state):
        torch.save(state, path / f"shard_{dist.get_rank()}.pt")
        if dist.get_rank() == 0:
            (path / ".metadata").write_text(json.dumps({"world_size": dist.get_world_size()}))

    def load(self):
        path = self.folder / "latest"
        metadata = json.loads((path / ".metadata").read_text())
        return [torch.load(path / f"shard_{rank}.pt") for rank in range(metadata["world_size"])]


@pytest.mark.ddp(world_size=3)
def test_auto_resume(ddp, tmp_path):
    torch.manual_seed(0)
    model = MLP()
    manager = CheckpointManager(tmp_path)
    for step in range(2):
        manager.save(step, model)
        evaluate(10)
        dist.all_reduce(torch.ones(()))
        manager.publish(step)
        dist.barrier()
        assert len(manager.load()) == ddp.world_size
        dist.barrier()
