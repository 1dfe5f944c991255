"""Each rank looks whether the name of the checkpoint is free; rank 0 then takes it."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from training import MLP, evaluate


class ModelCheckpoint:
    def __init__(self, folder, model):
        self.folder, self.model = folder, model
        self.best_model_path = ""

    def save(self, epoch):
        path = self.folder / f"epoch={epoch}.ckpt"
        version = 0
        while path.exists():
            path = self.folder / f"epoch={epoch}-v{version}.ckpt"
            version += 1
        if dist.get_rank() == 0:
            evaluate(20)
            torch.save(self.model.state_dict(), path)
        self.best_model_path = path


@pytest.mark.ddp(world_size=2)
def test_best_model_path(ddp, tmp_path):
    torch.manual_seed(0)
    checkpoint = ModelCheckpoint(tmp_path, MLP())
    for epoch in range(2):
        loss = torch.ones(())
        dist.all_reduce(loss)
        checkpoint.save(epoch)
    dist.barrier()
    torch.load(checkpoint.best_model_path)
    assert len(set(ddp.gather(checkpoint.best_model_path))) == 1
