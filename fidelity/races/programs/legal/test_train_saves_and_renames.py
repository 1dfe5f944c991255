"""A training with DCP: saves are renamed, the last two kept, and barriers are where they belong."""

from __future__ import annotations

import shutil

import pytest
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from training import Training


def save(folder, training, epoch):
    temporary = folder / f"epoch-{epoch}.tmp"
    dcp.save(training.state(), checkpoint_id=temporary)
    dist.barrier()
    if dist.get_rank() == 0:
        temporary.rename(folder / f"epoch-{epoch}")
        if epoch >= 2:
            shutil.rmtree(folder / f"epoch-{epoch - 2}")
    dist.barrier()


@pytest.mark.ddp(world_size=2)
def test_train(ddp, tmp_path):
    training = Training(tmp_path)
    for epoch in range(4):
        training.run(5)
        save(tmp_path, training, epoch)
        state = training.state()
        dcp.load(state, checkpoint_id=tmp_path / f"epoch-{epoch}")
        assert state["step"] == training.step
        dist.barrier()
    assert not (tmp_path / "epoch-1").exists()
    assert (tmp_path / "epoch-3").exists()
