import os

import pytest
import torch
import torch.distributed as dist

COUNT = int(os.environ["BENCHMARK_COUNT"])
WORLD_SIZE = int(os.environ["BENCHMARK_WORLD_SIZE"])


@pytest.mark.parametrize("number", range(COUNT))
@pytest.mark.ddp(world_size=WORLD_SIZE)
def test_all_reduce(ddp, number):
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == ddp.world_size
