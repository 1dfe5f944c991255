"""Among a training: all ranks save a shard into the directory which rank 0 makes."""

from __future__ import annotations

import json
import os

import pytest
import torch
import torch.distributed as dist
from training import Training, evaluate


def save_checkpoint(folder, step, model, optimizer):
    rank = dist.get_rank()
    if rank == 0:
        os.makedirs(folder, exist_ok=True)
        torch.save(model, folder / f"model_{step:06d}.pt")
        (folder / f"meta_{step:06d}.json").write_text(json.dumps({"step": step}))
    torch.save(optimizer, folder / f"optim_{step:06d}_rank{rank}.pt")


@pytest.mark.ddp(world_size=3)
def test_base_train(ddp, tmp_path):
    training = Training(tmp_path)
    for _ in range(5):
        training.run(5)
        (tmp_path / f"report-{ddp.rank}-{training.step}.md").write_text("base training\n")
    if ddp.rank != 0:
        evaluate(10)
    state = training.model.module.state_dict()
    save_checkpoint(tmp_path / "d20", training.step, state, training.optimizer.state_dict())
    dist.barrier()
    saved = torch.load(tmp_path / "d20" / f"optim_000025_rank{ddp.rank}.pt")
    assert saved["param_groups"][0]["lr"] == 0.1
