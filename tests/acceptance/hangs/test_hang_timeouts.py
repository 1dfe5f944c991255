"""A wait that a timeout of its own ends in time is no deadlock: the test may expect that."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.acceptance.suite import LOADFILE, Finished, Suite, flat

SOURCE = """
    import time
    from datetime import timedelta

    import pytest
    import torch
    import torch.distributed as dist

    ddp2 = pytest.mark.ddp(world_size=2)
    SHORT = timedelta(seconds=1.5)
    LONG = timedelta(seconds=900)
    expires = pytest.raises(RuntimeError, match="(?i)timed out")


    def ones():
        return torch.ones(2)


    @ddp2
    def test_barrier(ddp):
        group = dist.new_group(timeout=SHORT)
        if ddp.rank == 0:
            begin = time.monotonic()
            with expires:
                dist.barrier(group)
            assert time.monotonic() - begin > 1.4


    @ddp2
    def test_barrier_of_its_own_timeout(ddp):
        if ddp.rank == 0:
            with expires:
                dist.barrier(timeout=SHORT)


    @ddp2
    def test_group_is_whole_again(ddp):
        tensor = ones()
        dist.all_reduce(tensor)
        assert tensor.tolist() == [2, 2]


    @ddp2
    def test_wait_of_its_own_timeout(ddp):
        if ddp.rank == 0:
            with expires:
                dist.all_reduce(ones(), async_op=True).wait(SHORT)


    @ddp2
    def test_group_is_whole_after_a_wait(ddp):
        dist.barrier()


    @ddp2
    def test_receive(ddp):
        group = dist.new_group(timeout=SHORT)
        if ddp.rank == 0:
            with expires:
                dist.recv(ones(), src=1, group=group)


    @ddp2
    def test_receive_of_its_own_timeout(ddp):
        if ddp.rank == 0:
            with expires:
                dist.irecv(ones(), src=1).wait(timeout=SHORT)


    @ddp2
    def test_contradiction(ddp):
        group = dist.new_group(timeout=SHORT)
        with pytest.raises(RuntimeError):
            if ddp.rank == 0:
                dist.all_reduce(ones(), group=group)
            else:
                dist.barrier(group)


    @ddp2
    def test_monitored_barrier(ddp):
        if ddp.rank == 0:
            with pytest.raises(RuntimeError, match="failed to pass monitoredBarrier"):
                dist.monitored_barrier(timeout=SHORT)


    @ddp2
    def test_group_is_whole_after_a_monitored_barrier(ddp):
        dist.barrier()


    @ddp2
    def test_store(ddp):
        if ddp.rank == 0:
            with pytest.raises(RuntimeError):
                dist.distributed_c10d._get_default_store().wait(["never"], SHORT)


    @ddp2
    def test_another_one_waits_for_the_rank_that_waits(ddp):
        group = dist.new_group(timeout=SHORT)
        if ddp.rank == 0:
            with expires:
                dist.barrier(group)
        dist.barrier()


    @pytest.mark.ddp(world_size=2, init=False)
    def test_default_group(ddp):
        dist.init_process_group("gloo", timeout=SHORT)
        if ddp.rank == 0:
            with expires:
                dist.barrier()
        ddp.barrier()
        dist.destroy_process_group()


    @ddp2
    def test_timeout_after_the_deadline(ddp):
        group = dist.new_group(timeout=LONG)
        if ddp.rank == 0:
            dist.barrier(group)  # for ever


    @ddp2
    def test_wait_after_the_deadline(ddp):
        if ddp.rank == 0:
            dist.barrier(async_op=True).wait(LONG)


    @ddp2
    def test_short_group_beside_a_long_one(ddp):
        dist.new_group(timeout=SHORT)
        if ddp.rank == 0:
            dist.recv(ones(), src=1)


    @ddp2
    def test_wait_of_no_timeout(ddp):
        if ddp.rank == 0:
            dist.barrier(async_op=True).wait(timedelta(0))


    @ddp2
    def test_unexpected(ddp):
        group = dist.new_group(timeout=SHORT)
        if ddp.rank == 0:
            dist.barrier(group)
"""

PROVED = ("timeout_after_the_deadline", "wait_after_the_deadline")
PROVED += ("short_group_beside_a_long_one", "wait_of_no_timeout")
PASSING = [
    name
    for line in SOURCE.splitlines()
    if (name := line.strip().partition("def test_")[2].partition("(")[0])
    and name not in (*PROVED, "unexpected")
]


@pytest.fixture(scope="module")
def timeouts(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("test_timeouts.py", SOURCE)
    return suite.run(*LOADFILE)


@pytest.mark.parametrize("name", PASSING)
def test_wait_that_ends_by_itself_is_left_to_it(timeouts: Finished, name: str) -> None:
    result = timeouts[f"test_{name}"]
    assert result.verdict == "passed", result.text


@pytest.mark.parametrize("name", PROVED)
def test_wait_beyond_the_deadline_is_proved_at_once(timeouts: Finished, name: str) -> None:
    result = timeouts[f"test_{name}"]
    assert result.verdict == "failed"
    assert result.phase("call").message.startswith("deadlock: rank 0 waits in ")


def test_timeout_that_nobody_expected_has_its_cause(timeouts: Finished) -> None:
    result = timeouts["test_unexpected"]
    assert result.verdict == "failed"
    assert "Timed out waiting 1500ms" in result.text
    text = flat(result.text)
    assert "Only a timeout could end this deadlock: rank 0 waits in barrier #1 of the group" in text
