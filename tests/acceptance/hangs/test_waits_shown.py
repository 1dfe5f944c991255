"""The table at the deadline shows what each rank waits for: its peer, its group, its thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.acceptance.suite import Finished, Suite, flat

SOURCE = """
    import asyncio
    import socket
    import threading
    import time
    from concurrent.futures import ThreadPoolExecutor

    import pytest
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    ddp2 = pytest.mark.ddp(world_size=2, timeout=3)
    ones = torch.ones
    FOR_EVER = 1000


    def in_a_thread(function):
        async def go():
            await asyncio.to_thread(function)

        asyncio.run(go())


    @ddp2
    def test_to_thread(ddp):
        if ddp.rank == 0:
            in_a_thread(dist.barrier)
        else:
            time.sleep(FOR_EVER)


    @ddp2
    def test_exchange_to_thread(ddp):
        if ddp.rank == 0:
            in_a_thread(ddp.barrier)
        else:
            time.sleep(FOR_EVER)


    @ddp2
    def test_executor(ddp):
        if ddp.rank == 0:
            with ThreadPoolExecutor(1, "loader") as pool:
                pool.submit(dist.all_reduce, ones(2)).result()
        else:
            time.sleep(FOR_EVER)


    @ddp2
    def test_thread_of_a_rank_that_sleeps(ddp):
        if ddp.rank == 0:
            receive = lambda: dist.recv(ones(2), 1, tag=5)  # in a thread
            threading.Thread(target=receive, name="fetcher", daemon=True).start()
            time.sleep(FOR_EVER)
        else:
            dist.barrier()


    @ddp2
    def test_backward_in_a_thread(ddp):
        model = DistributedDataParallel(torch.nn.Linear(2, 1))
        if ddp.rank == 0:
            with ThreadPoolExecutor(1, "trainer") as pool:
                pool.submit(lambda: model(ones(1, 2)).sum().backward()).result()
        else:
            time.sleep(FOR_EVER)


    @ddp2
    def test_groups_in_unlike_orders(ddp):
        for ranks in ([0, 1], [1]) if ddp.rank == 0 else ([1], [0, 1]):
            dist.new_group(ranks)


    @ddp2
    def test_other_groups(ddp):
        for ranks in ([0, 1],) if ddp.rank == 0 else ([0], [1]):
            dist.new_group(ranks)


    @ddp2
    def test_crossed_groups(ddp):
        one, other = dist.new_group([0, 1]), dist.new_group([0, 1])
        for group in (one, other) if ddp.rank == 0 else (other, one):
            dist.all_reduce(ones(1), group=group)


    def meet(ddp):
        url = f"tcp://127.0.0.1:{ddp.gather(free_port())[0]}"
        dist.init_process_group("gloo", init_method=url, rank=ddp.rank, world_size=2)
        dist.all_reduce(ones(1))


    def free_port():
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            return free.getsockname()[1]


    @pytest.mark.ddp(world_size=2, timeout=3, init=False)
    def test_tcp_as_under_torchrun(ddp):
        meet(ddp)


    @pytest.mark.ddp(world_size=2, timeout=30, init=False)
    def test_tcp_served_by_rank_0(ddp, monkeypatch):
        monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE")
        meet(ddp)


    @ddp2
    def test_send(ddp):
        if ddp.rank == 0:
            dist.send(ones(10**7), 1, tag=3)
        else:
            time.sleep(FOR_EVER)


    @ddp2
    def test_receive_from_anybody(ddp):
        if ddp.rank == 0:
            dist.recv(ones(2))
        else:
            time.sleep(FOR_EVER)


    @ddp2
    def test_message_that_is_too_long(ddp):
        if ddp.rank == 0:
            dist.send(ones(4), 1)
        else:
            dist.recv(ones(2), 0)


    @ddp2
    def test_begun_receive_that_is_too_short(ddp):
        if ddp.rank == 0:
            dist.send(ones(4), 1)
        else:
            dist.irecv(ones(2), 0).wait()


    @ddp2
    def test_collective_of_unlike_sizes(ddp):
        x = ones(2 + ddp.rank)
        dist.all_gather([torch.empty_like(x) for _ in range(2)], x)
"""

WAITS = {
    "to_thread": ("waits", "barrier #1 of the default group in thread asyncio_0"),
    "exchange_to_thread": ("waits", "ddp.barrier #1 in thread asyncio_0"),
    "executor": ("waits", "all_reduce #1 of the default group in thread loader_0"),
    "thread_of_a_rank_that_sleeps": ("runs", "recv from rank 1 (tag 5) in thread fetcher"),
    "backward_in_a_thread": ("waits", "all_reduce #4 of the default group in thread trainer_0"),
    "groups_in_unlike_orders": ("waits", "new_group #1 (ranks 0, 1)"),
    "crossed_groups": ("waits", "all_reduce #1 (1 x float32) of the group of ranks 0, 1"),
    "tcp_as_under_torchrun": ("waits", "init_process_group"),
    "send": ("waits", "send #1 to rank 1 (tag 3)"),
    "receive_from_anybody": ("waits", "recv from any rank (tag 0)"),
}
"""State of rank 0 and what it waits in."""

SLEEPERS = (
    *("to_thread", "exchange_to_thread", "executor", "backward_in_a_thread"),
    *("send", "receive_from_anybody"),
)
"""Tests in which rank 1 sleeps, so that it is the cause."""

THREADS = {
    "to_thread": "distributed_c10d.py",
    "exchange_to_thread": "pytest_ddp/fixture.py",
    "executor": "distributed_c10d.py",
    "backward_in_a_thread": "torch/autograd/graph.py",
    "thread_of_a_rank_that_sleeps": "in <lambda>",
}


@pytest.fixture(scope="module")
def finished(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("test_waits.py", SOURCE)
    return suite.run("--ddp-diagnosis=diagnoses", timeout=150)


@pytest.fixture(scope="module")
def diagnoses(finished: Finished) -> dict[str, Any]:
    """The diagnosis of the one failure of each test, by the test's name."""
    return finished.diagnosed("diagnoses")


@pytest.mark.parametrize("name", WAITS)
def test_wait_is_in_the_table(finished: Finished, diagnoses: dict[str, Any], name: str) -> None:
    state, words = WAITS[name]
    first = diagnoses[name]["ranks"][0]
    assert (first["state"], first["collective"]) == (state, words)
    assert words in flat(finished[f"test_{name}"].text)


@pytest.mark.parametrize("name", SLEEPERS)
def test_rank_that_waits_for_its_thread_is_not_the_cause(
    diagnoses: dict[str, Any], name: str
) -> None:
    assert diagnoses[name]["root_cause"] == [1]


def test_other_rank_shows_its_own_groups(diagnoses: dict[str, Any]) -> None:
    other = diagnoses["groups_in_unlike_orders"]["ranks"][1]
    assert other["collective"] == "new_group #2 (ranks 0, 1)"


def test_groups_of_a_rank_that_has_ended_are_shown(finished: Finished) -> None:
    text = flat(finished["test_other_groups"].text)
    assert "rank 0 waits call: new_group new_group #1 (ranks 0, 1)" in text
    assert "rank 1 ended rank 1: has made new_group #2 (rank 1)" in text
    assert "has made new_group" not in flat(finished["test_send"].text)


def test_groups_of_the_same_ranks_are_told_apart(finished: Finished) -> None:
    assert flat(finished["test_crossed_groups"].text).startswith(
        "deadlock: rank 0 waits in all_reduce #1 of the group of ranks 0, 1, "
        "rank 1 in all_reduce #1 of group 2 of ranks 0, 1 "
    )


def test_store_that_no_rank_serves_is_named(finished: Finished) -> None:
    text = flat(finished["test_tcp_as_under_torchrun"].text)
    assert "ranks 0-1: has found no store at 127.0.0.1:" in text
    assert "TORCHELASTIC_USE_AGENT_STORE makes all ranks clients, as under torchrun" in text
    assert finished["test_tcp_served_by_rank_0"].verdict == "passed"


@pytest.mark.parametrize("name", THREADS)
def test_stack_of_the_thread_is_shown(finished: Finished, name: str) -> None:
    _, found, thread = finished[f"test_{name}"].text.partition("rank 0 in call, another thread:")
    assert found
    assert THREADS[name] in thread


def test_message_is_not_called_a_collective(finished: Finished) -> None:
    text = flat(finished["test_message_that_is_too_long"].text)
    assert "a message was longer than the tensor that receives it" in text
    assert "collective tensors" not in text
    begun = flat(finished["test_begun_receive_that_is_too_short"].text)
    assert "or a message was longer than the tensor that receives it" in begun
    gathered = flat(finished["test_collective_of_unlike_sizes"].text)
    assert "the ranks gave one collective tensors of different shape" in gathered
    assert "a message" not in gathered
