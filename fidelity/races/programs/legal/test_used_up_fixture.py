"""The fixture of the module is used up by the test, which can run only once on these ranks."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist


@pytest.fixture(scope="module")
def batches():
    return iter(torch.arange(4.0).split(2))


@pytest.mark.ddp(world_size=2)
def test_all_batches(ddp, batches, tmp_path):
    total = torch.zeros(2)
    for number, batch in enumerate(batches):
        (tmp_path / f"batch-{number}-{ddp.rank}").touch()
        dist.all_reduce(batch)
        total += batch
    assert total.tolist() == [4.0, 8.0]
