"""The smallest meaningful ddp test."""

import pytest
import torch
import torch.distributed as dist

from pytest_ddp.extensions.doctor import rank_witness


@pytest.mark.ddp(world_size=2, backend="gloo", timeout=120)
def test_two_ranks(ddp, request):
    total = torch.tensor(float(ddp.rank))
    dist.all_reduce(total)
    assert total.item() == 1
    rank_witness.tell_rank(request.config)
