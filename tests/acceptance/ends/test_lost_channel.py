"""A test that closes descriptors, or writes into them, is named, and nothing else is guessed."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.acceptance.suite import Finished, Suite, flat

SOURCE = """
    import os
    import socket
    import stat
    import time

    import pytest
    import torch
    import torch.distributed as dist

    ddp2 = pytest.mark.ddp(world_size=2)


    def descriptors(kind):
        for number in range(3, 256):
            try:
                if kind(number):
                    yield number
            except OSError:
                pass


    def is_channel(number):
        if not stat.S_ISSOCK(os.fstat(number).st_mode):
            return False
        with socket.socket(fileno=os.dup(number)) as end:
            return end.family == socket.AF_UNIX


    def is_connection(number):
        return stat.S_ISSOCK(os.fstat(number).st_mode) and not is_channel(number)


    def is_epoll(number):
        return "eventpoll" in os.readlink(f"/proc/self/fd/{number}")


    @ddp2
    def test_writes_garbage(ddp):
        if ddp.rank == 1:
            for number in descriptors(is_channel):
                os.write(number, b"garbage" * 100)
        dist.barrier()


    @ddp2
    def test_writes_garbage_alone(ddp):
        if ddp.rank == 1:
            for number in descriptors(is_channel):
                os.write(number, b"garbage" * 100)
            time.sleep(1000)


    @ddp2
    def test_closes_its_channel(ddp):
        if ddp.rank == 1:
            for number in descriptors(is_channel):
                os.close(number)


    @ddp2
    def test_shuts_its_channel(ddp):
        if ddp.rank == 1:
            for number in descriptors(is_channel):
                socket.socket(fileno=os.dup(number)).shutdown(socket.SHUT_WR)
            sum(range(10**12))


    @ddp2
    def test_hears_no_more(ddp):
        if ddp.rank == 1:
            for number in descriptors(is_channel):
                socket.socket(fileno=os.dup(number)).shutdown(socket.SHUT_RD)
        dist.barrier()
        time.sleep(1000)


    @ddp2
    def test_shuts_both_ways(ddp):
        if ddp.rank == 1:
            for number in descriptors(is_channel):
                socket.socket(fileno=os.dup(number)).shutdown(socket.SHUT_RDWR)
            time.sleep(1000)
        dist.barrier()


    @ddp2
    def test_closes_all(ddp):
        if ddp.rank == 1:
            os.closerange(3, 256)
        dist.barrier()


    @ddp2
    def test_closes_connections(ddp):
        dist.barrier()
        if ddp.rank == 1:
            for number in list(descriptors(is_connection)):
                os.close(number)
        dist.barrier()


    @ddp2
    def test_closes_epoll(ddp):
        dist.barrier()
        if ddp.rank == 1:
            for number in list(descriptors(is_epoll)):
                os.close(number)
        dist.barrier()
        time.sleep(1)
        dist.barrier()


    @ddp2
    def test_unlike_shapes(ddp):
        dist.all_reduce(torch.ones(4 + 4000 * ddp.rank))


    @ddp2
    def test_next_one_passes(ddp):
        dist.barrier()
"""

GARBAGE = "rank 1 was ended because something else wrote into its connection to pytest"
LOST = "rank 1 lost its connection to pytest"
CLOSED = ("gloo aborted it", "a descriptor of gloo's was closed")
LEFT = ("rank 1 exited with code 78", "finds its connection to pytest closed")
"""The end that comes of the first of its threads that wants to write there; ``LOST`` comes of the
one that reads."""
SAID: dict[str, tuple[tuple[str, ...], ...]] = {
    "writes_garbage": ((GARBAGE,),),
    "writes_garbage_alone": ((GARBAGE, " in call"),),
    "closes_its_channel": (LEFT, (LOST,)),
    "shuts_its_channel": ((LOST,),),
    "hears_no_more": ((LOST,),),
    "shuts_both_ways": ((LOST,),),
    "closes_all": (CLOSED, LEFT, (LOST,)),
    "closes_connections": (CLOSED,),
    "closes_epoll": (CLOSED,),
    "unlike_shapes": (("gloo aborted it", "tensors of different shape or dtype"),),
}
"""The legal ends of each test, of which one is shown: which comes first is a race in the rank."""
LATE = {"writes_garbage": "passed+error"}
"""Verdicts of tests whose rank has passed its call before pytest has read what the call wrote."""


@pytest.fixture(scope="module")
def lost(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("test_lost.py", SOURCE)
    return suite.run("--ddp-timeout=30", "--ddp-diagnosis=diagnoses", timeout=120)


@pytest.mark.parametrize("name", SAID)
def test_what_was_seen_is_in_the_text(lost: Finished, name: str) -> None:
    result = lost[f"test_{name}"]
    assert result.verdict in {"failed", LATE.get(name)}, result.text
    text = flat(result.text)
    assert any(all(words in text for words in end) for end in SAID[name]), text


@pytest.mark.parametrize("name", SAID)
def test_nothing_else_is_guessed(lost: Finished, name: str) -> None:
    text = flat(lost[f"test_{name}"].text)
    assert "out-of-memory" not in text
    assert ("shape or dtype" in text) == (name == "unlike_shapes"), text


def test_kind_is_no_want_of_memory(lost: Finished) -> None:
    records = [json.loads(path.read_text()) for path in (lost.directory / "diagnoses").iterdir()]
    assert len(records) == len(SAID)
    assert {record["failures"][0]["kind"] for record in records} == {"crash", "exit"}


def test_next_test_passes(lost: Finished) -> None:
    assert lost["test_next_one_passes"].verdict == "passed"
