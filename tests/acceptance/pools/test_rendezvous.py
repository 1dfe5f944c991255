"""The rendezvous of code under test itself: nobody finds there what a test before has left."""

from __future__ import annotations

from tests.acceptance.suite import LOADFILE, Suite

TESTS = """
    import os
    import threading
    from pathlib import Path

    import pytest
    import torch.distributed as dist

    pytestmark = pytest.mark.ddp(world_size=2)


    @pytest.fixture(autouse=True)
    def port(request, ddp):
        name = request.node.name.partition("[")[0]
        (Path("ports") / f"{name}-{ddp.rank}").write_text(os.environ["MASTER_PORT"])


    def meet(ddp):
        dist.destroy_process_group()
        dist.init_process_group("gloo")
        store = dist.distributed_c10d._get_default_store()
        dist.barrier()
        assert not store.check(["left"])
        dist.barrier()
        store.set("left", "1")
        ddp.barrier()


    def test_a_quiet(ddp): ...


    def test_b_quiet(ddp): ...


    def test_c_meets(ddp):
        meet(ddp)


    def test_d_meets(ddp):
        meet(ddp)


    def test_e_quiet(ddp): ...


    def test_f_fails(ddp):
        assert ddp.rank


    def test_g_meets(ddp):
        meet(ddp)


    def test_h_serving_rank_dies(ddp):
        if ddp.rank == 0:
            os._exit(0)


    def test_i_meets(ddp):
        meet(ddp)


    def test_j_leaves_a_thread(ddp):
        threading.Thread(target=threading.Event().wait, name="stays", daemon=True).start()


    def test_k_meets(ddp):
        meet(ddp)


    def test_l_quiet(ddp): ...
"""

SAME = [("test_a_quiet", "test_b_quiet", "test_c_meets"), ("test_e_quiet", "test_f_fails")]
"""Tests that have one port: nobody has met by it before the last of them."""


def test_each_meets_by_a_store_of_its_own(suite: Suite) -> None:
    suite.write("test_meetings.py", TESTS)
    (suite.directory / "ports").mkdir()
    run = suite.run(*LOADFILE, timeout=60)
    run.assert_outcomes(passed=10, failed=2)
    assert run["test_f_fails"].verdict == run["test_h_serving_rank_dies"].verdict == "failed"
    ports = {file.name: file.read_text() for file in (suite.directory / "ports").iterdir()}
    for tests in SAME:
        assert len({ports[f"{test}-{rank}"] for test in tests for rank in (0, 1)}) == 1, ports


CLIENTS = """
    import os
    import socket
    import time
    from datetime import timedelta

    import pytest
    import torch
    import torch.distributed as dist

    pytestmark = pytest.mark.ddp(world_size=2)
    LONG = timedelta(seconds=60)


    def address():
        return os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])


    def connect():
        return dist.TCPStore(*address(), is_master=False, timeout=LONG)


    @pytest.mark.parametrize("time", ["first", "second"])
    def test_all_ranks(ddp, time):
        store = connect()
        assert not store.check(["0", "1"])
        ddp.barrier()
        store.set(str(ddp.rank), time)
        store.wait(["0", "1"], LONG)


    @pytest.mark.parametrize("rank", [1, 1, 0, 1])
    def test_one_rank(ddp, rank):
        # Rank 0 may be through before it is asked to serve.
        if ddp.rank == rank:
            store = connect()
            assert not store.check(["key"])
            store.set("key", "1")


    def test_no_store(ddp):
        if ddp.rank == 1:
            time.sleep(0.2)
            socket.create_connection(address()).close()


    def test_after_that(ddp):
        connect()


    def test_rank_0_is_busy(ddp):
        if ddp.rank == 1:
            connect()
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            sum(range(1000))
        dist.all_reduce(torch.ones(1))


    def test_own_group(ddp):
        dist.destroy_process_group()
        if ddp.rank == 1:
            connect().set("key", "1")
        dist.init_process_group("gloo")
        dist.barrier()
        assert connect().check(["key"])


    @pytest.fixture(scope="class")
    def store(ddp):
        return connect()


    class TestFixture:
        def test_sets(self, ddp, store):
            store.set(str(ddp.rank), "1")

        def test_gets(self, ddp, store):
            store.wait(["0", "1"], LONG)
            assert not connect().check(["0"])

        def test_gets_again(self, ddp, store):
            assert store.check(["0", "1"])
"""


def test_a_store_is_served_to_clients(suite: Suite) -> None:
    suite.write("test_clients.py", CLIENTS)
    run = suite.run(*LOADFILE)
    run.assert_outcomes(passed=13)
    assert not run.warnings, run.tail()
