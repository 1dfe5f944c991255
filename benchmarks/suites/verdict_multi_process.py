"""The cases under torch's own harness."""

import torch
import torch.distributed as dist
from torch.testing._internal.common_distributed import MultiProcessTestCase
from verdict_cases import CASES, TIMEOUT


class TestCases(MultiProcessTestCase):
    @property
    def world_size(self):
        return 2

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def _run_case(self, case):
        torch.set_num_threads(1)
        dist.init_process_group(
            "gloo",
            store=dist.FileStore(self.file_name, 2),
            rank=self.rank,
            world_size=2,
            timeout=TIMEOUT,
        )
        case(self.rank)
        dist.destroy_process_group()


def _add(case):
    name = f"test_{case.__name__}"
    setattr(TestCases, name, lambda self: self._run_case(case))
    getattr(TestCases, name).__name__ = name


for _case in CASES:
    _add(_case)
