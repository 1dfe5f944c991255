"""Before a training: every rank removes the directory of the run before, and makes it anew."""

from __future__ import annotations

import shutil
import time

import pytest
import torch
import torch.distributed as dist
from training import Training


def initialize_checkpoint_dir(path, overwrite):
    if path.exists():
        if not overwrite:
            raise FileExistsError(f"{path} exists")
        shutil.rmtree(path)
    path.mkdir(parents=True, exist_ok=True)


@pytest.mark.ddp(world_size=2)
def test_overwrite(ddp, tmp_path):
    folder = tmp_path / "checkpoints"
    if ddp.rank == 0:
        for step in range(4):
            (folder / str(step)).mkdir(parents=True)
            torch.save({"step": step}, folder / str(step) / "model.pt")
    dist.barrier()
    time.sleep(0.3 * ddp.rank)
    initialize_checkpoint_dir(folder, overwrite=True)
    training = Training(tmp_path)
    for _ in range(4):
        training.run(6)
        if ddp.rank == 0:
            torch.save(training.state(), folder / f"{training.step}.pt")
    dist.barrier()
    assert len(list(folder.iterdir())) == 4
