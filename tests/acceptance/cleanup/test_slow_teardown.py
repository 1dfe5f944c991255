"""A rank that has failed may take its time to tear down, and is stopped there only after that."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.acceptance.suite import Finished, Suite, flat

SUITE = """
    import time

    import pytest
    import torch.distributed as dist

    pytestmark = pytest.mark.ddp(world_size=2)
    SECONDS = {"test_peer_waits": 3, "test_all_fail": 3, "test_never_ends": 100}


    @pytest.fixture
    def slow(request, ddp):
        yield
        if ddp.rank == 1 or request.node.name == "test_all_fail":
            time.sleep(SECONDS[request.node.name])


    def test_peer_waits(slow, ddp):
        assert ddp.rank == 0
        dist.barrier()


    def test_all_fail(slow):
        assert not "on all"


    def test_peer_works_on(ddp):
        assert ddp.rank == 0
        time.sleep(100)


    def test_never_ends(slow, ddp):
        assert ddp.rank == 0


    def test_after(ddp):
        dist.barrier()
"""


@pytest.fixture(scope="module")
def run(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("test_suite.py", SUITE)
    return suite.run()


@pytest.mark.parametrize("name", ["test_peer_waits", "test_all_fail", "test_peer_works_on"])
def test_a_failure_is_a_failure_and_nothing_else(run: Finished, name: str) -> None:
    assert run[name].verdict == "failed"


def test_a_peer_that_waits_is_shown_the_end(run: Finished) -> None:
    said = "rank 0: stopped in call, waiting in barrier #1 of the default group at test_suite.py"
    assert said in flat(run["test_peer_waits"].text)


def test_a_peer_that_does_not_wait_is_stopped(run: Finished) -> None:
    assert "rank 0: stopped in call, at test_suite.py" in run["test_peer_works_on"].text


def test_a_teardown_without_an_end_is_an_error(run: Finished) -> None:
    assert run["test_never_ends"].verdict == "failed+error"
    assert "rank 1 was stopped in teardown" in run["test_never_ends"].text


def test_the_next_one_passes(run: Finished) -> None:
    assert run["test_after"].verdict == "passed"
