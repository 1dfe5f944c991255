"""torch's faster harness: processes kept for a class, without pytest in them."""

import os

import torch
import torch.distributed as dist
from torch.testing._internal.common_distributed import MultiProcContinuousTest

COUNT = int(os.environ["BENCHMARK_COUNT"])
WORLD_SIZE = int(os.environ["BENCHMARK_WORLD_SIZE"])


class TestAllReduce(MultiProcContinuousTest):
    world_size = WORLD_SIZE

    @classmethod
    def backend_str(cls):
        return "gloo"


for number in range(COUNT):

    def _test(self):
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        assert tensor.item() == WORLD_SIZE

    _test.__name__ = f"test_{number}"
    setattr(TestAllReduce, _test.__name__, _test)
