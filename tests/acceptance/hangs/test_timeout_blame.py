"""A timeout names the rank that does not move, not those that wait for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.acceptance.suite import Finished, Suite, flat

SOURCE = """
    import ctypes
    import os
    import queue
    import signal
    import threading
    import time

    import pytest
    import torch
    import torch.distributed as dist

    ddp3 = pytest.mark.ddp(world_size=3, timeout=3)
    FOR_EVER = 1000


    @ddp3
    def test_sleeps(ddp):
        if ddp.rank == 1:
            time.sleep(FOR_EVER)  # sleeps
        dist.all_reduce(torch.ones(1))


    @ddp3
    def test_computes(ddp):
        while ddp.rank == 2:
            sum(range(1000))
        dist.barrier()


    @ddp3
    def test_is_suspended(ddp):
        if ddp.rank == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
        dist.barrier()


    @ddp3
    def test_computes_in_c(ddp):
        if ddp.rank == 1:
            sum(range(10**12))
        dist.barrier()


    @ddp3
    def test_sleeps_in_c(ddp):
        if ddp.rank == 1:
            ctypes.PyDLL(None).sleep(FOR_EVER)
        dist.barrier()


    @ddp3
    def test_two_of_them(ddp):
        if ddp.rank:
            queue.Queue().get()
        ddp.barrier()


    @ddp3
    def test_ended_long_ago_beside_one_that_sleeps(ddp):
        if ddp.rank == 1:
            threading.Event().wait()
        if ddp.rank == 2:
            dist.recv(torch.ones(1), src=1)


    @ddp3
    def test_monitored_barrier(ddp):
        if ddp.rank == 2:
            time.sleep(FOR_EVER)
        dist.monitored_barrier()


    @ddp3
    def test_new_group(ddp):
        if ddp.rank == 2:
            time.sleep(FOR_EVER)
        dist.new_group([0, 1, 2], use_local_synchronization=ddp.rank < 0)


    @ddp3
    def test_send(ddp):
        if ddp.rank == 0:
            dist.send(torch.ones(10**7), dst=1)
        if ddp.rank == 1:
            time.sleep(FOR_EVER)


    @ddp3
    def test_receive_from_anybody(ddp):
        if ddp.rank == 0:
            time.sleep(FOR_EVER)
        dist.recv(torch.ones(1))


    @ddp3
    def test_slow_steps(ddp):
        for _ in range(FOR_EVER):
            if ddp.rank == 0:
                time.sleep(0.5)
            dist.all_reduce(torch.ones(1))


    @ddp3
    def test_next_one_passes(ddp):
        dist.barrier()
"""

CULPRITS = {
    "sleeps": [1],
    "computes": [2],
    "is_suspended": [0],
    "computes_in_c": [1],
    "sleeps_in_c": [1],
    "two_of_them": [1, 2],
    "ended_long_ago_beside_one_that_sleeps": [1],
    "monitored_barrier": [2],
    "new_group": [2],
    "send": [1],
    "receive_from_anybody": [0],
    "slow_steps": [0],
}


@pytest.fixture(scope="module")
def timeouts(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("test_blame.py", SOURCE)
    return suite.run("--ddp-diagnosis=diagnoses", timeout=120)


@pytest.fixture(scope="module")
def diagnoses(timeouts: Finished) -> dict[str, Any]:
    """The diagnosis of the one failure of each test, by the test's name."""
    return timeouts.diagnosed("diagnoses")


def states(failure: dict[str, Any]) -> list[str]:
    return [rank["state"] for rank in failure["ranks"]]


@pytest.mark.parametrize("name", CULPRITS)
def test_who_does_not_wait_is_the_cause(diagnoses: dict[str, Any], name: str) -> None:
    assert diagnoses[name]["kind"] == "timeout", diagnoses[name]["verdict"]
    assert diagnoses[name]["root_cause"] == CULPRITS[name], diagnoses[name]


def test_table_shows_where_each_rank_was(timeouts: Finished, diagnoses: dict[str, Any]) -> None:
    line = next(n for n, text in enumerate(SOURCE.splitlines(), 1) if text.endswith("# sleeps"))
    text = flat(timeouts["test_sleeps"].text)
    assert "timed out after 3 s: rank 1 has not finished call, ranks 0, 2 wait" in text
    assert "rank 0 waits call all_reduce #1 (1 x float32) of the default group" in text
    assert f"rank 1 runs call test_blame.py:{line} in test_sleeps" in text
    assert diagnoses["sleeps"]["line"] == line
    assert states(diagnoses["sleeps"]) == ["waits", "runs", "waits"]


def test_suspended_process_is_named_as_such(timeouts: Finished, diagnoses: dict[str, Any]) -> None:
    text = flat(timeouts["test_is_suspended"].text)
    assert "timed out after 3 s: rank 0 is suspended in call, ranks 1-2 wait" in text
    assert "a signal such as SIGSTOP has stopped its process" in text
    assert diagnoses["is_suspended"]["ranks"][0]["state"] == "suspended"
    assert "SIGSTOP" in diagnoses["is_suspended"]["ranks"][0]["said"]


@pytest.mark.parametrize(
    ("name", "words"),
    [("computes_in_c", "it computes in code that holds the GIL"), ("sleeps_in_c", "it sleeps")],
)
def test_held_gil_is_named_as_such(
    timeouts: Finished, diagnoses: dict[str, Any], name: str, words: str
) -> None:
    text = flat(timeouts[f"test_{name}"].text)
    assert "timed out after 3 s: rank 1 does not answer in call, ranks 0, 2 wait" in text
    assert f"rank 1: does not answer: {words}" in text
    assert diagnoses[name]["ranks"][1]["state"] == "silent"


def test_operation_that_a_rank_waits_in_is_named(diagnoses: dict[str, Any]) -> None:
    names = ("monitored_barrier", "new_group", "send")
    found = [diagnoses[name]["ranks"][0]["collective"] for name in names]
    sends = "send #1 to rank 1 (tag 0)"
    assert found == ["monitored_barrier", "new_group #1 (ranks 0, 1, 2)", sends]


def test_next_test_passes(timeouts: Finished) -> None:
    assert timeouts["test_next_one_passes"].verdict == "passed"
