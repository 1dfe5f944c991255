"""Among a training: rank 0 makes the directory of the checkpoint anew while others enter a save."""

from __future__ import annotations

import os
import shutil

import pytest
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from training import Training, evaluate


def save_state_dict(path, state):
    if dist.get_rank() == 0:
        shutil.rmtree(path, ignore_errors=True)
        os.makedirs(path)
    else:
        evaluate(6)
    dcp.save(state, storage_writer=dcp.FileSystemWriter(path))


@pytest.mark.ddp(world_size=2)
def test_load_of_saved(ddp, tmp_path):
    training = Training(tmp_path)
    path = tmp_path / "checkpoint"
    for epoch in range(3):
        training.run(5)
        save_state_dict(path, training.state())
        state = training.state()
        dcp.load(state, storage_reader=dcp.FileSystemReader(path))
        assert state["step"] == 5 * (epoch + 1)
        dist.barrier()
