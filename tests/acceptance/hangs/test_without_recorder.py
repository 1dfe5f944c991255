"""A hang without torch's flight recorder is left to the deadline, and pytest shows that once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.acceptance.suite import EXTRA_ARGS, UNDER_XDIST, Finished, Suite

SOURCE = """
    import pytest
    import torch
    import torch.distributed as dist

    ddp2 = pytest.mark.ddp(world_size=2)


    @ddp2
    def test_passes(ddp):
        dist.barrier()


    @pytest.mark.ddp(world_size=2, timeout=3)
    def test_hangs(ddp):
        if ddp.rank == 0:
            dist.barrier()  # waits


    @ddp2
    def test_differs(ddp):
        dist.all_reduce(torch.ones(1), op=[dist.ReduceOp.SUM, dist.ReduceOp.MAX][ddp.rank])
"""


@pytest.fixture(scope="module", params=["TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"])
def unrecorded(request: pytest.FixtureRequest, new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("test_unrecorded.py", SOURCE)
    # Each worker of xdist would say it once.
    return suite.run(env={request.param: "0"}, extra=() if UNDER_XDIST else EXTRA_ARGS)


def test_hang_ends_at_the_deadline_with_stacks(unrecorded: Finished) -> None:
    result = unrecorded["test_hangs"]
    assert result.verdict == "failed"
    assert result.phase("call").message == "timed out after 3 s: rank 0 has not finished call"
    lines = SOURCE.splitlines()
    waits = next(number for number, line in enumerate(lines, 1) if line.endswith("# waits"))
    assert f"test_unrecorded.py:{waits} in test_hangs" in result.text


def test_rest_is_not_affected(unrecorded: Finished) -> None:
    assert unrecorded["test_passes"].verdict == "passed"
    assert "all_reduce(MAX, 1 x float32)" in unrecorded["test_differs"].text


def test_the_warning_is_shown_once(unrecorded: Finished) -> None:
    shown = [text for text in unrecorded.warnings if "turns torch's flight recorder off" in text]
    assert len(shown) == 1
