"""A timeout without a proof of a hang: the text names what is wrong, and accuses no slow rank.

So it is with NCCL, where the GPU waits and the thread that issued a collective goes on. Here the
threads wait for something else than the collectives that they have begun.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.acceptance.suite import Finished, Suite

SOURCE = """
    import multiprocessing
    import os
    import threading
    from concurrent.futures import ProcessPoolExecutor

    import pytest
    import torch
    import torch.distributed as dist
    from torch.utils.data import DataLoader

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


    # One rank's process alone communicates: else gloo's messages between processes and ranks can
    # cross, and abort a rank.
    def collate(batch):
        if dist.get_rank():
            dist.broadcast(torch.tensor(batch), 0)  # in a worker
        return batch


    def test_worker(ddp):
        assert len(list(DataLoader([1, 2], batch_size=1, collate_fn=collate, num_workers=1))) == 2


    fork = multiprocessing.get_context("fork")


    def test_process(ddp):
        child = fork.Process(target=lambda: dist.recv(torch.ones(1), 0))  # in a process
        child.start()
        child.join()


    def test_pool(ddp):
        if ddp.rank:
            with ProcessPoolExecutor(1, mp_context=fork) as pool:
                pool.submit(dist.broadcast_object_list, [None], 0).result()
        dist.barrier()


    def test_plain_fork(ddp):
        if ddp.rank:
            if (child := os.fork()) == 0:
                dist.monitored_barrier()  # in a fork
            os.waitpid(child, 0)


    def in_a_group_of_its_own(file, then):
        dist.init_process_group("gloo", init_method=f"file://{file}", rank=0, world_size=1)
        dist.all_reduce(torch.ones(1))
        then()


    @pytest.mark.ddp(timeout=5, init=False)
    def test_own_group(ddp, tmp_path):
        child = fork.Process(target=in_a_group_of_its_own, args=(tmp_path / "file", for_ever))
        child.start()
        child.join()


    @pytest.mark.ddp(timeout=60, init=False)
    def test_process_that_is_right(ddp, tmp_path):
        target = in_a_group_of_its_own
        child = fork.Process(target=target, args=(tmp_path / f"file{ddp.rank}", int))
        child.start()
        child.join()
        assert child.exitcode == 0
"""

WHY = ": a process group does not work in a fork of the process that made it"
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
    "worker": (
        f"rank 1: the forked DataLoader worker 0 waits in broadcast at test_timeouts.py:63{WHY}",
    ),
    "process": (f" waits in recv at test_timeouts.py:75{WHY}",),
    "pool": ("rank 1: the forked process ", f" waits in broadcast at test_timeouts.py:83{WHY}"),
    "plain_fork": (f" waits in monitored_barrier at test_timeouts.py:90{WHY}",),
    "slow": (),
    "ended_with": (),
    "own_group": (),
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
    assert "timed out after " in case.text
    text = " ".join(case.text.split())
    for words in SAID[name]:
        assert words in text
    if not SAID[name]:
        assert "collective #" not in text
        assert "has ended the test" not in text
        assert "forked" not in text


def test_fork_with_a_group_of_its_own_passes(finished: Finished) -> None:
    assert finished["test_process_that_is_right"].verdict == "passed"
