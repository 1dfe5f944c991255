"""Among a training: each rank decides by what it sees whether it takes part in a broadcast."""

from __future__ import annotations

import json

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from training import Training, evaluate


class CheckpointManager:
    def __init__(self, folder):
        self.folder = folder

    def save(self, training):
        path = self.folder / f"step_{training.step}"
        dcp.save(training.state(), checkpoint_id=path)
        if dist.get_rank() == 0:
            torch.save({"step": training.step}, path / "train_state.pt")
            (path / "metadata.json").write_text(json.dumps({"step": training.step}))

    def load(self, training, step):
        path = self.folder / f"step_{step}"
        found = [{"step": 0}]
        if (path / "train_state.pt").exists():
            if dist.get_rank() == 0:
                found = [torch.load(path / "train_state.pt")]
            dist.broadcast_object_list(found)
        training.step = found[0]["step"]


@pytest.mark.ddp(world_size=3)
def test_resume(ddp, tmp_path):
    training = Training(tmp_path)
    manager = CheckpointManager(tmp_path)
    for epoch in range(3):
        training.run(6)
        manager.save(training)
        if ddp.rank != 0:
            evaluate(6)
        manager.load(training, 6 * (epoch + 1))
        assert training.step == 6 * (epoch + 1)
