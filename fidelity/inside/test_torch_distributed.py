"""torch's own tests of torch.distributed: under torch's harness, or on this plugin's ranks."""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
import unittest
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.multiprocessing
from torch.testing._internal.common_distributed import TEST_SKIPS
from torch.testing._internal.common_utils import TestCase
from torch.testing._internal.distributed.distributed_test import (
    Barrier,
    DistributedTest,
    TestDistBackend,
)

_SKIP_CODES = {skip.exit_code: skip.message for skip in TEST_SKIPS.values()}


if os.environ["FIDELITY_RANKS"] == "0":

    class TestTorch(TestDistBackend, DistributedTest._DistTestBase):
        def setUp(self) -> None:
            super().setUp()  # type: ignore[no-untyped-call]
            # Not spawned, as torch does it: 855 interpreters would each import torch.
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

else:

    class TestTorch(TestCase, DistributedTest._DistTestBase):  # type: ignore[no-redef]
        @pytest.fixture(autouse=True)
        def _place(self, ddp: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
            """What torch's harness prepares for its processes."""
            self.rank, self.world_size = ddp.rank, str(ddp.world_size)
            directory = ddp.broadcast(tempfile.mkdtemp() if ddp.rank == 0 else None)
            self.file_name = f"{directory}/rendezvous"
            self.init_method = f"file://{self.file_name}"
            monkeypatch.setenv("TEMP_DIR", directory)
            if ddp.rank == 0:
                for name in ("barrier", "test_dir", "init_dir"):
                    Path(directory, name).mkdir()
            Barrier.barrier_id = 0
            ddp.barrier()
            yield
            ddp.barrier()
            if ddp.rank == 0:
                shutil.rmtree(directory)

    def _skipping(test: Callable[[Any], None]) -> Callable[[Any], None]:
        """With a skip for the exit codes that mean one to torch's harness."""

        @functools.wraps(test)
        def run(self: Any) -> None:
            try:
                test(self)
            except SystemExit as ended:
                if ended.code not in _SKIP_CODES:
                    raise
                raise unittest.SkipTest(_SKIP_CODES[ended.code]) from None

        return run

    for _name in unittest.TestLoader().getTestCaseNames(TestTorch):
        setattr(TestTorch, _name, _skipping(getattr(TestTorch, _name)))

del TestDistBackend  # pytest would collect it
