"""A GPU that a test has broken: the rank is replaced, and the next test is not harmed.

Without GPUs a stand-in breaks: what torch says of a CUDA context after a device-side assert.
"""

from __future__ import annotations

from tests.acceptance.suite import LOADFILE, Suite

SOURCE = """
    import os

    import pytest
    import torch

    class Broken:
        def query(self):
            raise RuntimeError("CUDA error: device-side assert triggered\\nCompile with ...")

    class Busy:
        def query(self):
            return False

    def have_a_gpu(stream):
        torch.cuda.is_initialized = lambda: True
        torch.cuda.current_stream = lambda: stream
        torch.cuda.manual_seed_all = lambda seed: None

    PIDS = []

    @pytest.mark.ddp(world_size=2)
    def test_breaks_it(ddp):
        if ddp.rank:
            have_a_gpu(Broken())
            raise RuntimeError("CUDA error: device-side assert triggered")

    @pytest.mark.ddp(world_size=2)
    def test_next(ddp):
        # Rank 0 has run the test before, the new rank 1 has run none.
        assert not torch.cuda.is_initialized()
        PIDS.append(os.getpid())

    @pytest.mark.ddp(world_size=2)
    def test_is_busy(ddp):
        have_a_gpu(Busy())
        PIDS.append(os.getpid())

    @pytest.mark.ddp(world_size=2)
    def test_same_ranks(ddp):
        assert len(PIDS) == 2, "no rank was replaced for work that goes on"
"""


def test_its_rank_is_replaced(suite: Suite) -> None:
    suite.write("test_suite.py", SOURCE)
    run = suite.run(*LOADFILE)
    run.assert_outcomes(passed=3, failed=1)
    assert "device-side assert" in run["test_breaks_it"].text
    (warning,) = run.warnings
    assert "left a GPU that no longer works (CUDA error: device-side assert triggered)" in warning
    assert "on rank 1; the rank is replaced" in warning
