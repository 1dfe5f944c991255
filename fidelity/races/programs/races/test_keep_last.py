"""The reader has the name of a checkpoint that is removed when the writer has saved two more."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist
from training import evaluate


class Checkpoints:
    """Keeps the last two; a file says which one is the latest."""

    def __init__(self, folder):
        self.folder = folder

    def save(self, step):
        torch.save({"step": step}, self.folder / f"step-{step}.pt")
        temporary = self.folder / "latest.tmp"
        temporary.write_text(f"step-{step}.pt")
        os.replace(temporary, self.folder / "latest")
        if step > 2:
            (self.folder / f"step-{step - 2}.pt").unlink()

    def load(self):
        name = (self.folder / "latest").read_text()
        return torch.load(self.folder / name)


@pytest.mark.ddp(world_size=2)
def test_latest(ddp, tmp_path):
    checkpoints = Checkpoints(tmp_path)
    if ddp.rank == 0:
        checkpoints.save(1)
    dist.barrier()
    if ddp.rank == 0:
        checkpoints.save(2)
        checkpoints.save(3)
    else:
        evaluate(20)
        assert checkpoints.load()["step"] in (1, 2, 3)
    dist.barrier()
