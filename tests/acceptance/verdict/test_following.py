"""Teardown errors of ranks that lost their peers in the call refer to that, in few lines."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.acceptance.suite import Finished, Suite

SOURCE = """
    import os
    import signal
    from datetime import timedelta

    import pytest
    import torch
    import torch.distributed as dist

    ddp3 = pytest.mark.ddp(world_size=3)


    @pytest.fixture
    def meets(ddp):
        yield
        ddp.barrier()


    @pytest.fixture
    def sums(ddp):
        yield
        dist.all_reduce(torch.ones(1))


    @pytest.fixture
    def group(ddp):
        group = dist.new_group(timeout=timedelta(seconds=1))
        yield group
        dist.barrier(group)


    @pytest.fixture
    def breaks(ddp):
        yield
        assert ddp.world_size == 2, "of its own"


    @ddp3
    def test_killed(ddp, meets, sums):
        if ddp.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)


    @ddp3
    def test_failed(ddp, meets, group):
        assert ddp.rank != 1
        dist.barrier(group)


    @ddp3
    def test_own(ddp, meets, sums, breaks):
        if ddp.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def run(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("test_following.py", SOURCE)
    return suite.run(timeout=120)


@pytest.mark.parametrize("name", ["killed", "failed"])
def test_teardown_that_follows_refers_to_the_failure(run: Finished, name: str) -> None:
    result = run[f"test_{name}"]
    assert result.verdict == "failed+error"
    text = result.phase("teardown").text
    first = text.splitlines()[0]
    assert re.fullmatch(
        r"ranks [\d, -]+ could not go on in teardown after the failure in call", first
    )
    assert "ExceptionGroup" not in text
    assert "Traceback" not in text
    assert "call had failed before: rank 1" in " ".join(text.split())


def test_error_of_its_own_is_shown(run: Finished) -> None:
    text = run["test_own"].phase("teardown").text
    assert "of its own" in text
    assert "ExceptionGroup" in text
