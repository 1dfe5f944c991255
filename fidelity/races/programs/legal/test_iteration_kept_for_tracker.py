"""The iteration is taken when the save begins."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist
from training import MLP, evaluate


@dataclass
class TrainState:
    step: int = 0


def save_checkpoint(folder, train_state, model):
    step = train_state.step
    path = folder / f"iter_{step:07d}"
    if dist.get_rank() == 0:
        path.mkdir()
    dist.barrier()

    def finalize():
        torch.save(model.state_dict(), path / f"rank_{dist.get_rank()}.pt")
        if dist.get_rank() == 0:
            tracker = folder / "latest_checkpointed_iteration.txt"
            tracker.write_text(str(step))

    thread = threading.Thread(target=finalize)
    thread.start()
    return thread


@pytest.mark.ddp(world_size=2)
def test_resume(ddp, tmp_path):
    train_state, model = TrainState(), MLP()
    save = None
    for step in range(1, 5):
        evaluate(6)
        loss = torch.ones(())
        dist.all_reduce(loss)
        train_state.step = step
        if step == 2:
            save = save_checkpoint(tmp_path, train_state, model)
    save.join()
    dist.barrier()
    iteration = int((tmp_path / "latest_checkpointed_iteration.txt").read_text())
    torch.load(tmp_path / f"iter_{iteration:07d}" / f"rank_{ddp.rank}.pt")
