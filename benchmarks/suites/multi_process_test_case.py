"""torch's own harness: processes for each test."""

import os

import torch
import torch.distributed as dist
from torch.testing._internal.common_distributed import MultiProcessTestCase

COUNT = int(os.environ["BENCHMARK_COUNT"])
WORLD_SIZE = int(os.environ["BENCHMARK_WORLD_SIZE"])


class TestAllReduce(MultiProcessTestCase):
    @property
    def world_size(self):
        return WORLD_SIZE

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def _all_reduce(self):
        dist.init_process_group(
            "gloo",
            store=dist.FileStore(self.file_name, WORLD_SIZE),
            rank=self.rank,
            world_size=WORLD_SIZE,
        )
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        assert tensor.item() == WORLD_SIZE
        dist.destroy_process_group()


for number in range(COUNT):

    def _test(self):
        self._all_reduce()

    _test.__name__ = f"test_{number}"
    setattr(TestAllReduce, _test.__name__, _test)
