"""Tests of other harnesses, which have processes of one machine: they run on node 0."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.acceptance.extensions.machines.cluster import Cluster, Session
from tests.acceptance.suite import Suite, flat

SPAWN = """
    import os
    import socket
    import tempfile

    import pytest
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp


    def work(rank, file):
        assert socket.gethostname() == "alpha"
        dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == 2


    def waits(rank, file):
        dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
        dist.barrier() if rank == 0 else dist.recv(torch.zeros(1), 0)


    def test_spawn(tmp_path):
        mp.spawn(work, (tmp_path / "store",), nprocs=2)


    def test_deadlock_between_processes(tmp_path):
        mp.spawn(waits, (tmp_path / "store",), nprocs=2)


    @pytest.mark.ddp(world_size=2)
    def test_ddp_beside_it(ddp):
        assert ddp.gather(socket.gethostname()) == ["alpha", "beta"]
"""
TESTCASE = """
    import socket

    import torch
    import torch.distributed as dist
    from torch.testing._internal.common_distributed import (
        MultiProcContinuousTest,
        MultiProcessTestCase,
    )


    class TestOfTorch(MultiProcessTestCase):
        @property
        def world_size(self):
            return 2

        def setUp(self):
            super().setUp()
            self._spawn_processes()

        def test_sum(self):
            store = dist.FileStore(self.file_name, self.world_size)
            dist.init_process_group(
                "gloo", store=store, rank=self.rank, world_size=self.world_size
            )
            total = torch.ones(1)
            dist.all_reduce(total)
            self.assertEqual(total.item(), 2)
            self.assertEqual(socket.gethostname(), "alpha")

        def test_fails(self):
            self.assertEqual(self.rank, 0)


    class TestContinuous(MultiProcContinuousTest):
        world_size = 2

        @classmethod
        def backend_str(cls):
            return "gloo"

        def test_first(self):
            total = torch.ones(1)
            dist.all_reduce(total)
            self.assertEqual(total.item(), 2)

        def test_second(self):
            dist.barrier()
            self.assertEqual(socket.gethostname(), "alpha")
"""
VERDICTS = {
    "test_spawn": "passed",
    "test_deadlock_between_processes": "failed",
    "test_ddp_beside_it": "passed",
    "TestOfTorch::test_sum": "passed",
    "TestOfTorch::test_fails": "failed",
    "TestContinuous::test_first": "passed",
    "TestContinuous::test_second": "passed",
}


@pytest.fixture(scope="module")
def session(cluster: Cluster, new_suite: Callable[[], Suite]) -> Session:
    suite = new_suite()
    suite.write("test_spawn.py", SPAWN)
    suite.write("test_testcase.py", TESTCASE)
    return cluster.run(suite, "--ddp-adopt=all", torchrun=True)


def test_verdicts_are_those_of_one_machine(session: Session) -> None:
    found = {name: session.alpha[name].verdict for name in VERDICTS}
    assert found == VERDICTS, session.text


def test_a_deadlock_between_processes_is_proved(session: Session) -> None:
    assert "deadlock: " in flat(session.alpha["test_deadlock_between_processes"].text)


def test_a_failure_names_the_machines_of_its_ranks(session: Session) -> None:
    text = flat(session.alpha["TestOfTorch::test_fails"].text)
    assert "ranks 0-1 on node 0 (alpha)." in text


def test_nothing_survives(cluster: Cluster, session: Session) -> None:
    assert session.alpha.returncode == session.beta.returncode == 1, session.text
    assert cluster.survivors_after(3) == []
