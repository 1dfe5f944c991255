"""DCP saves in a thread, which is waited for before the next step changes anything."""

from __future__ import annotations

import pytest
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from training import Training


@pytest.mark.ddp(world_size=2)
def test_async_save(ddp, tmp_path):
    training = Training(tmp_path)
    for epoch in range(2):
        training.run(4)
        future = dcp.async_save(training.state(), checkpoint_id=tmp_path / f"epoch-{epoch}")
        future.result()
        dist.barrier()
        state = training.state()
        dcp.load(state, checkpoint_id=tmp_path / f"epoch-{epoch}")
        assert state["step"] == 4 * (epoch + 1)
