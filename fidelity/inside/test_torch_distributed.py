"""torch's own tests of torch.distributed: under torch's harness, or adopted by this plugin."""

from __future__ import annotations

import torch.multiprocessing
from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend


class TestTorch(TestDistBackend, DistributedTest._DistTestBase):
    def setUp(self) -> None:
        super().setUp()  # type: ignore[no-untyped-call]
        # Not spawned, as torch does it: 855 interpreters would each import torch.
        self._start_processes(torch.multiprocessing.get_context("fork").Process)


del TestDistBackend  # pytest would collect it
