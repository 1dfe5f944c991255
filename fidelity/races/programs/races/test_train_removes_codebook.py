"""Among a training: rank 0 removes what it has downloaded when it has read it itself."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from training import Training, evaluate


def download(folder):
    """All ranks read the codebook; rank 0 downloads it, and removes it as it is compressed."""
    path = folder / "codebook.pt"
    if dist.get_rank() == 0:
        torch.save(torch.arange(16.0), path)
    dist.barrier()
    codebook = torch.load(path)
    if dist.get_rank() == 0:
        evaluate(15)
        path.unlink()
    return codebook


@pytest.mark.ddp(world_size=2)
def test_train(ddp, tmp_path):
    training = Training(tmp_path)
    for epoch in range(3):
        training.run(6)
        dcp.save(training.state(), checkpoint_id=tmp_path / f"epoch-{epoch}")
    codebook = download(tmp_path)
    state = training.state()
    dcp.load(state, checkpoint_id=tmp_path / "epoch-2")
    assert state["step"] == 18
    with torch.no_grad():
        training.x.mul_(codebook)
    assert training.run(4) > 0
