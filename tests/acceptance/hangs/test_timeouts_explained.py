"""A timeout without a proof of a hang says what is wrong already, and accuses no slow rank.

So it is with NCCL, where the GPU waits and the thread that issued a collective goes on. Here the
threads wait for something else than the collectives that they have begun.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.acceptance.suite import Finished, Suite

SOURCE = """
    import threading

    import pytest
    import torch
    import torch.distributed as dist

    pytestmark = pytest.mark.ddp(world_size=2, timeout=3)


    def for_ever():
        threading.Event().wait(600)


    def test_differ(ddp):
        tensor = torch.ones(4)
        if ddp.rank:
            work = dist.all_reduce(tensor, async_op=True)
        else:
            work = dist.broadcast(tensor, 0, async_op=True)
        for_ever()


    def test_ended_without(ddp):
        if ddp.rank:
            work = dist.all_reduce(torch.ones(4), async_op=True)
            for_ever()


    def test_receives(ddp):
        if ddp.rank == 0:
            work = dist.irecv(torch.ones(4), 1)
            for_ever()


    def test_sends(ddp):
        if ddp.rank == 1:
            work = dist.isend(torch.ones(4), 0)
            for_ever()


    def test_slow(ddp):
        works = [dist.all_reduce(torch.ones(2), async_op=True) for _ in range(1 + 2 * ddp.rank)]
        if ddp.rank:
            works.append(dist.isend(torch.ones(2), 0))
        for_ever()


    def test_ended_with(ddp):
        dist.all_reduce(torch.ones(2))
        if ddp.rank:
            for_ever()
"""

SAID = {
    "differ": (
        "the ranks differ in collective #1 of the default group:",
        "rank 0: broadcast(4 x float32, root 0)",
        "rank 1: all_reduce(SUM, 4 x float32)",
    ),
    "ended_without": (
        "the ranks diverge at collective #1 of the default group:",
        "rank 1: all_reduce(SUM, 4 x float32)",
        "rank 0: no collective",
    ),
    "receives": (
        "rank 0 called recv from rank 1 at",
        "rank 1 has ended the test without that send.",
    ),
    "sends": ("rank 1 called send to rank 0 at", "rank 0 has ended the test without that recv."),
    "slow": (),
    "ended_with": (),
}


@pytest.fixture(scope="module")
def finished(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("test_timeouts.py", SOURCE)
    return suite.run(timeout=120)


@pytest.mark.parametrize("name", SAID)
def test_what_is_wrong_already_is_in_the_text(finished: Finished, name: str) -> None:
    case = finished[f"test_{name}"]
    assert case.verdict == "failed"
    assert "timed out after 3 s" in case.text
    text = " ".join(case.text.split())
    for words in SAID[name]:
        assert words in text
    if not SAID[name]:
        assert "collective #" not in text
        assert "has ended the test" not in text
