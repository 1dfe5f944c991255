"""Each rank makes the directory of checkpoints if it has not seen it."""

from __future__ import annotations

import os

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel
from training import MLP, evaluate


class ModelCheckpoint:
    def __init__(self, path):
        self.path = path
        if not os.path.exists(path):
            os.makedirs(path)


@pytest.mark.ddp(world_size=2)
def test_fit(ddp, tmp_path):
    if ddp.rank == 0:
        torch.save(torch.randn(64, 16), tmp_path / "train.pt")
        evaluate(20)
    callback = ModelCheckpoint(tmp_path / "lightning_logs" / "version_0" / "checkpoints")
    model = DistributedDataParallel(MLP())
    model(torch.load(tmp_path / "train.pt")).sum().backward()
    if ddp.rank == 0:
        torch.save(model.state_dict(), callback.path / "epoch=0.ckpt")
