"""Slow and legal work is never accused of a hang.

``make soak`` repeats each example 20 times with all cores busy:
``DDP_ACCEPTANCE_SOAK`` is the number of repetitions.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.acceptance.suite import EXTRA_ARGS, UNDER_XDIST, Finished, Suite
from tests.acceptance.verdict import collective_examples

REPEATS = int(os.environ.get("DDP_ACCEPTANCE_SOAK", "1"))
IS_SOAK = "DDP_ACCEPTANCE_SOAK" in os.environ
ASIDE = () if UNDER_XDIST else ("-n9",)
"""Most examples sleep, which they can do side by side: half of them at once."""

CONFTEST = f"""
    def pytest_generate_tests(metafunc):
        metafunc.fixturenames.append("repeat")
        metafunc.parametrize("repeat", range({REPEATS}))
"""

SLOW = """
    import ctypes
    import threading
    import time

    import pytest
    import torch
    import torch.distributed as dist
    import torch.distributed._functional_collectives as funcol
    from torch.distributed._functional_collectives import wait_tensor
    from torch.distributed.algorithms.join import Join
    from torch.nn.parallel import DistributedDataParallel

    ddp2 = pytest.mark.ddp(world_size=2)
    ddp3 = pytest.mark.ddp(world_size=3)
    ones = torch.ones
    LONG = 20  # seconds
    LATE = 5  # seconds
    BUSY = 8  # seconds of a whole core; the prover looks every 2 s at least


    @ddp2
    def test_sleeps_before_its_collective(ddp):
        if ddp.rank == 0:
            time.sleep(LONG)
        dist.barrier()


    @ddp2
    def test_a_callback_of_a_future_takes_long(ddp):
        def computes(future):
            time.sleep(BUSY)
            return future.value()[0] + 1

        future = dist.all_reduce(ones(2), async_op=True).get_future().then(computes)
        if ddp.rank == 0:
            future.wait()
        dist.barrier()
        assert future.wait().tolist() == [3, 3]


    @ddp2
    def test_a_future_is_completed_by_a_thread(ddp):
        future = torch.futures.Future()
        threading.Timer(BUSY, lambda: future.set_result(1)).start()
        dist.all_reduce(ones(1), async_op=True).get_future().wait()
        assert future.then(lambda done: done.value() + 1).wait() == 2


    @ddp2
    def test_computes_and_holds_the_gil(ddp):
        if ddp.rank == 0:
            end = time.monotonic() + BUSY
            while time.monotonic() < end:
                sum(range(10**8))
        dist.barrier()


    @ddp2
    def test_sleeps_and_holds_the_gil(ddp):
        if ddp.rank == 0:
            ctypes.PyDLL(None).sleep(LONG)
        dist.barrier()


    @ddp2
    def test_computes_in_operators(ddp):
        if ddp.rank == 0:
            end = time.monotonic() + BUSY
            while time.monotonic() < end:
                ones(200, 200) @ ones(200, 200)
        dist.all_reduce(ones(1))


    class Slow(torch.utils.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            time.sleep(LONG / 4)
            return index


    @ddp2
    def test_slow_data_in_a_worker(ddp):
        data = torch.utils.data.DataLoader(Slow(), num_workers=1) if ddp.rank == 0 else range(4)
        for _ in data:
            dist.all_reduce(ones(1))


    @ddp2
    def test_uneven_inputs_under_join(ddp):
        model = DistributedDataParallel(torch.nn.Linear(1, 1))
        with Join([model]):
            for _ in range(2 + 3 * ddp.rank):
                time.sleep(LONG / 5 * ddp.rank)
                model(ones(1, 1)).sum().backward()


    @ddp2
    def test_async_collectives_waited_late(ddp):
        works = [dist.all_reduce(ones(1), async_op=True) for _ in range(3)]
        if ddp.rank == 0:
            time.sleep(LONG)
        for work in works:
            work.wait()


    @ddp2
    def test_pending_while_asleep(ddp):
        pair, again = dist.new_group([0, 1]), dist.new_group([0, 1])
        if ddp.rank == 0:
            work = dist.all_reduce(ones(1), group=pair, async_op=True)
            time.sleep(LONG)
            dist.all_reduce(ones(1), group=again)
            work.wait()
        else:
            dist.all_reduce(ones(1), group=again)
            dist.all_reduce(ones(1), group=pair)


    @pytest.mark.ddp(world_size=4)
    def test_unlike_work_in_subgroups(ddp):
        first, second = dist.new_group([0, 1]), dist.new_group([2, 3])
        if ddp.rank < 2:
            for _ in range(4):
                time.sleep(LONG / 4 * ddp.rank)
                dist.all_reduce(ones(1), group=first)
        else:
            dist.broadcast(ones(3), src=2, group=second)
        dist.barrier()


    @ddp2
    def test_background_thread(ddp):
        group = dist.new_group([0, 1])

        def communicate():
            if ddp.rank == 0:
                time.sleep(LONG)
            dist.all_reduce(ones(1), group=group)

        thread = threading.Thread(target=communicate)
        if ddp.rank == 0:
            thread.start()
            dist.all_reduce(ones(1))
            thread.join()
        else:
            communicate()
            dist.all_reduce(ones(1))


    @ddp2
    def test_between_steps_of_ddp(ddp):
        model = DistributedDataParallel(torch.nn.Linear(2, 2))
        for _ in range(4):
            if ddp.rank == 0:
                time.sleep(LONG / 4)
            model(ones(1, 2)).sum().backward()


    @ddp2
    def test_send_late(ddp):
        if ddp.rank == 0:
            time.sleep(LONG)
            dist.send(ones(1), dst=1)
        else:
            dist.recv(ones(1), src=0)


    @ddp2
    def test_receive_late(ddp):
        if ddp.rank == 0:
            dist.send(ones(10**6), dst=1)
        else:
            time.sleep(LONG)
            dist.recv(ones(10**6), src=0)


    @ddp2
    def test_receive_late_in_a_thread(ddp):
        def receive():
            time.sleep(LATE)
            dist.recv(ones(1), src=0)

        if ddp.rank == 0:
            dist.send(ones(1), dst=1)
        else:
            thread = threading.Thread(target=receive)
            thread.start()
        dist.barrier()
        if ddp.rank == 1:
            thread.join()


    @ddp2
    def test_receives_that_were_begun_before_a_barrier(ddp):
        if ddp.rank == 0:
            time.sleep(LATE)
            for _ in range(3):
                dist.isend(ones(1), dst=1).wait()
        else:
            works = [dist.irecv(ones(1), src=0) for _ in range(3)]
        dist.barrier()
        if ddp.rank == 1:
            for work in works:
                work.wait()


    @ddp3
    def test_message_for_anybody_is_another_ranks(ddp):
        if ddp.rank == 0:
            dist.recv(ones(1))
            time.sleep(LATE)
            dist.recv(ones(1))
        else:
            dist.send(ones(1), dst=0)


    @ddp2
    def test_first_wait_of_two_messages(ddp):
        if ddp.rank == 0:
            works = [dist.isend(ones(1), dst=1) for _ in range(2)]
            works[0].wait()
            dist.barrier()
            works[1].wait()
        else:
            dist.recv(ones(1), src=0)
            time.sleep(LATE)
            dist.barrier()
            dist.recv(ones(1), src=0)


    @ddp2
    def test_sleeps_before_its_gather(ddp):
        if ddp.rank == 0:
            time.sleep(LONG)
        assert ddp.gather(ddp.rank) == [0, 1]
        dist.barrier()


    @ddp2
    def test_gathers_in_a_loop_while_another_sleeps(ddp):
        for step in range(8):
            if ddp.rank == step % 2:
                time.sleep(LONG / 8)
            assert ddp.gather(step) == [step, step]
            dist.all_reduce(ones(1))


    @ddp2
    def test_gathers_before_it_waits_for_a_collective(ddp):
        work = dist.all_reduce(ones(1), async_op=True)
        if ddp.rank == 0:
            work.wait()
            time.sleep(LONG)
        ddp.barrier()
        work.wait()


    @ddp2
    def test_gathers_in_a_thread(ddp):
        def gather():
            if ddp.rank == 0:
                time.sleep(LONG)
            assert ddp.gather(ddp.rank) == [0, 1]

        if ddp.rank == 0:
            thread = threading.Thread(target=gather)
            thread.start()
            dist.barrier()
            thread.join()
        else:
            gather()
            dist.barrier()


    OPERATIONS = {
        "broadcast": lambda one, several, group: dist.broadcast(one, 0, group),
        "awaited": lambda one, several, group: dist.broadcast(one, 0, group, True).wait(),
        "scatter": lambda one, several, group: dist.scatter(one, several, 0, group),
        "gather": lambda one, several, group: dist.gather(one, several, 0, group),
        "functional": lambda one, several, group: wait_tensor(
            funcol.broadcast(one, dist.get_group_rank(group, 0), group)
        ),
    }


    @ddp3
    @pytest.mark.parametrize("ranks", [[0, 1, 2], [2, 1, 0]])
    @pytest.mark.parametrize("operation", OPERATIONS)
    def test_message_between_receivers_of_a_late_root(ddp, operation, ranks):
        group = dist.new_group(ranks, sort_ranks=False)
        several = [ones(4) for _ in ranks] if ddp.rank == 0 else None
        if ddp.rank == 0:
            time.sleep(LATE)
        if ddp.rank == 2:
            dist.recv(ones(1), src=1)
        OPERATIONS[operation](ones(4), several, group)
        if ddp.rank == 1:
            dist.send(ones(1), dst=2)


    @pytest.mark.ddp(world_size=4)
    def test_message_between_branches_of_a_broadcast(ddp):
        if ddp.rank == 0:
            time.sleep(LATE)
        if ddp.rank == 1:
            dist.recv(ones(1), src=2)
        dist.broadcast(ones(4), src=0)
        if ddp.rank == 2:
            dist.send(ones(1), dst=1)


    @ddp3
    def test_reduce_of_one_element_passes_it_on(ddp):
        if ddp.rank == 1:
            time.sleep(LATE)
        if ddp.rank == 0:
            dist.recv(ones(1), src=2)
        dist.reduce(ones(1), dst=0)
        if ddp.rank == 2:
            dist.send(ones(1), dst=0)


    @ddp2
    def test_other_lines(ddp):
        for source in range(2):
            if ddp.rank == source:
                dist.broadcast(ones(2), src=source)
            else:
                dist.broadcast(torch.zeros(2), src=source)
            if ddp.rank == source:
                dist.all_reduce(ones(2))
            else:
                dist.all_reduce(torch.zeros(2))
"""
SLOW_COUNT = SLOW.count("def test_") + 2 * 5 - 1  # one of them has parameters
LEGAL = collective_examples.PRELUDE + collective_examples.EQUAL


@contextlib.contextmanager
def busy_cores() -> Iterator[None]:
    """Something to do for every core, of the priority of the tests."""
    code = "while True: pass"
    cores = range(os.cpu_count() or 1)
    processes = [subprocess.Popen([sys.executable, "-c", code]) for _ in cores]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def run(suite: Suite) -> Finished:
    suite.write("conftest.py", CONFTEST)
    with busy_cores() if IS_SOAK else contextlib.nullcontext():
        return suite.run(extra=(*ASIDE, *EXTRA_ARGS), timeout=120 + 60 * REPEATS)


@pytest.fixture(scope="module")
def slow(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("test_slow.py", SLOW)
    return run(suite)


@pytest.fixture(scope="module")
def legal(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("test_legal.py", LEGAL)
    return run(suite)


def test_slow_work_passes(slow: Finished) -> None:
    slow.assert_outcomes(passed=SLOW_COUNT * REPEATS)


def test_legal_asymmetry_passes(legal: Finished) -> None:
    legal.assert_outcomes(passed=len(collective_examples.EQUAL_NAMES) * REPEATS)


def test_nothing_is_suspected(slow: Finished, legal: Finished) -> None:
    assert not [text for text in (*slow.warnings, *legal.warnings) if "swapped" in text]
