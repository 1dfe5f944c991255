"""The JSON names the ranks with which it began: the few that did not do what most did, or none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.acceptance.suite import Suite

SOURCE = """
    import pytest
    import torch
    import torch.distributed as dist

    ddp2 = pytest.mark.ddp(world_size=2, timeout=30)
    ddp3 = pytest.mark.ddp(world_size=3, timeout=30)
    ddp4 = pytest.mark.ddp(world_size=4, timeout=30)
    ones = torch.ones


    @ddp4
    def test_broadcast_against_an_exchange(ddp):
        if ddp.rank == 2:
            dist.broadcast(ones(3), 2)
        ddp.barrier()


    @ddp4
    def test_broadcast_against_a_sum(ddp):
        if ddp.rank == 2:
            dist.broadcast(ones(3), 2)
        else:
            dist.all_reduce(ones(3))
        dist.barrier()


    @ddp4
    def test_size(ddp):
        dist.all_reduce(ones(3 + (ddp.rank == 2)))


    @ddp4
    def test_root(ddp):
        dist.broadcast(ones(3), 1 if ddp.rank == 2 else 0)


    @ddp4
    def test_receive(ddp):
        if ddp.rank == 2:
            dist.recv(ones(1), 0)
        dist.barrier()


    @ddp4
    def test_ended(ddp):
        if ddp.rank != 2:
            dist.barrier()


    @ddp4
    def test_dtype_at_the_end(ddp):
        x = ones(4, dtype=torch.int32 if ddp.rank == 2 else torch.float32)
        dist.all_gather([torch.empty_like(x) for _ in range(4)], x)


    @ddp4
    def test_one_more_at_the_end(ddp):
        if ddp.rank == 2:
            dist.all_reduce(ones(1), async_op=True)


    @ddp4
    def test_one_less_at_the_end(ddp):
        if ddp.rank != 2:
            dist.all_reduce(ones(1), async_op=True)


    @ddp3
    def test_in_a_subgroup_of_two(ddp):
        pair = dist.new_group([0, 2])
        if ddp.rank == 0:
            dist.barrier(group=pair)


    @ddp2
    def test_two_ranks(ddp):
        if ddp.rank == 0:
            dist.barrier()


    @ddp4
    def test_half(ddp):
        if ddp.rank < 2:
            dist.all_reduce(ones(3))
        else:
            dist.broadcast(ones(3), 2)
        dist.barrier()


    @ddp4
    def test_three_kinds(ddp):
        if ddp.rank == 2:
            dist.broadcast(ones(3), 2)
        elif ddp.rank != 3:
            dist.all_reduce(ones(3))
"""

ODD = (
    *("broadcast_against_an_exchange", "broadcast_against_a_sum", "size", "root", "receive"),
    *("ended", "dtype_at_the_end", "one_more_at_the_end", "one_less_at_the_end"),
)
UNKNOWN = ("in_a_subgroup_of_two", "two_ranks", "half", "three_kinds")


@pytest.fixture(scope="module")
def diagnoses(new_suite: Callable[[], Suite]) -> dict[str, Any]:
    """The diagnosis of the first failure of each test, by the test's name."""
    suite = new_suite()
    suite.write("test_odd.py", SOURCE)
    return suite.run("--ddp-diagnosis=diagnoses", timeout=120).diagnosed("diagnoses")


@pytest.mark.parametrize("name", ODD)
def test_the_odd_rank_is_named(diagnoses: dict[str, Any], name: str) -> None:
    found = diagnoses[name]
    assert (found["root_cause"], found["root_cause_unknown"]) == ([2], None), found["verdict"]


@pytest.mark.parametrize("name", UNKNOWN)
def test_no_rank_is_named_without_a_majority(diagnoses: dict[str, Any], name: str) -> None:
    found = diagnoses[name]
    assert found["root_cause"] == [], found["verdict"]
    assert found["root_cause_unknown"]
