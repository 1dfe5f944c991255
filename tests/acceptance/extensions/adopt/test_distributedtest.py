"""``--ddp-adopt=testcase``: classes of the shape of DeepSpeed's ``DistributedTest``, on ranks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.acceptance.suite import Finished, Suite

HARNESS = """
    import contextlib
    import inspect
    import os
    import socket
    import tempfile

    import pytest
    import torch.distributed as dist
    import torch.multiprocessing as mp
    from _pytest.outcomes import Skipped


    TOO_MANY = 4  # for the devices of this machine


    def free_port():
        # Below those that the kernel gives to other programs, before a rank listens here.
        for port in range(10000 + os.getpid() * 37 % 20000, 32768):
            with socket.socket() as free, contextlib.suppress(OSError):
                free.bind(("", port))
                return port


    class DistributedTest:
        is_dist_test = True
        world_size = 2
        reuse_dist_env = False
        one_by_one = False
        exec_timeout = 60
        _pool_cache = {}

        @pytest.fixture(autouse=True, scope="class")
        @classmethod
        def class_tmpdir(cls, tmpdir_factory):
            return tmpdir_factory.mktemp(cls.__name__)

        def __call__(self, request):
            self._current = getattr(self, request.function.__name__)
            names = inspect.getfullargspec(self._current).args[1:]
            self._kwargs = {name: request.getfixturevalue(name) for name in names}
            marks = getattr(request.function, "pytestmark", [])
            sizes = [mark.args[0] for mark in marks if mark.name == "world_size"]
            size = sizes[0] if sizes else self._kwargs.get("world_size", self.world_size)
            for procs in [size] if isinstance(size, int) else size:
                self._launch_procs(procs)

        def _launch_procs(self, procs):
            if procs >= TOO_MANY:
                pytest.skip(f"{procs} devices required")
            mp.set_start_method("forkserver", force=True)
            port = free_port()
            (self._launch_processes if self.one_by_one else self._launch_pool)(procs, port)

        def _launch_pool(self, procs, port):
            pool = self._pool_cache.get(procs) if self.reuse_dist_env else None
            if pool is None:
                pool = mp.Pool(processes=procs)
            if self.reuse_dist_env:
                self._pool_cache[procs] = pool
            try:
                args = [(rank, procs, port) for rank in range(procs)]
                messages = pool.starmap_async(self._dist_run, args).get(self.exec_timeout)
            finally:
                if not self.reuse_dist_env:
                    pool.starmap(self._dist_destroy, [() for _ in range(procs)])
                    pool.close()
                    pool.join()
            if any(messages):
                assert len(set(messages)) == 1, "Multiple different skip messages received"
                pytest.skip(messages[0])

        def _launch_processes(self, procs, port):
            messages = mp.Queue()
            processes = []
            for rank in range(procs):
                process = mp.Process(target=self._dist_run, args=(rank, procs, port, messages))
                process.start()
                processes.append(process)
            for process in processes:
                process.join(self.exec_timeout)
            for rank, process in enumerate(processes):
                if process.exitcode:
                    pytest.fail(f"Worker {rank} exited with code {process.exitcode}", pytrace=False)
            if not messages.empty():
                pytest.skip(messages.get())

        def _dist_run(self, rank, procs, port, messages=None):
            if not dist.is_initialized():
                os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
                os.environ.update(RANK=str(rank), WORLD_SIZE=str(procs), OF_HARNESS="1")
                dist.init_process_group("gloo")
            try:
                self._current(**self._kwargs)
            except Skipped as skipped:
                if messages is None:
                    return skipped.msg
                messages.put(skipped.msg)
            finally:
                if self.one_by_one:
                    dist.destroy_process_group()
            return ""

        def _dist_destroy(self):
            if dist.is_initialized():
                dist.barrier()
                dist.destroy_process_group()
"""
CONFTEST = """
    import pytest

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(item):
        if getattr(item.cls, "is_dist_test", False):
            item.cls()(item._request)
            item.runtest = lambda: True
"""
TESTS = """
    import multiprocessing
    import os
    import sys
    import uuid

    import pytest
    import torch
    import torch.distributed as dist
    from common import TOO_MANY, DistributedTest

    @pytest.fixture
    def of_one_process():
        return uuid.uuid4().hex

    @pytest.fixture
    def world_size():
        return [1, 2]

    class TestPool(DistributedTest):
        def test_sum(self, of_one_process, tmpdir, class_tmpdir):
            total = torch.ones(1)
            dist.all_reduce(total)
            assert total == 2
            seen = [None, None]
            dist.all_gather_object(seen, [of_one_process, str(tmpdir), str(class_tmpdir)])
            assert seen[0] == seen[1]
            assert "TORCHELASTIC_RUN_ID" not in os.environ

        @pytest.mark.world_size(3)
        @pytest.mark.parametrize("factor", [1, 2])
        def test_marked(self, factor):
            assert dist.get_world_size() * factor in (3, 6)
            dist.barrier()

        @pytest.mark.parametrize("world_size", [1, [2]])
        def test_parametrized(self, world_size):
            assert dist.get_world_size() == (world_size if world_size == 1 else 2)

        def test_skips(self):
            pytest.skip("no such thing")

        def test_skips_on_one(self):
            if dist.get_rank() == 1:
                pytest.skip("of rank 1")

        def test_fails_on_one(self):
            assert dist.get_rank() == 0
            dist.barrier()

        def test_dies(self):
            if dist.get_rank() == 1:
                os.abort()
            dist.barrier()

        def test_hangs(self):
            dist.recv(torch.ones(1), 1 - dist.get_rank())

        @pytest.fixture
        def broken(self):
            raise LookupError("of a fixture")

        def test_broken_fixture(self, broken):
            pass

    class TestReuse(DistributedTest):
        reuse_dist_env = True

        def test_1_makes_it(self):
            DistributedTest.kept = dist.group.WORLD

        def test_2_finds_it(self):
            assert DistributedTest.kept is dist.group.WORLD
            assert os.environ["OF_HARNESS"] == "1"
            dist.barrier()

    class TestProcesses(DistributedTest):
        one_by_one = True

        def test_sum(self):
            total = torch.ones(1)
            dist.all_reduce(total)
            assert total == 2

        # The harness destroys the group at once, and a peer may still connect until a collective.
        def test_skips(self):
            dist.barrier()
            pytest.skip("no such thing")

        def test_fails_on_one(self):
            dist.barrier()
            assert dist.get_rank() == 0

        def test_exits(self):
            dist.barrier()
            sys.exit(3)

    class TestSizes(DistributedTest):
        world_size = [1, 2]

        def test_each(self):
            total = torch.ones(1)
            dist.all_reduce(total)
            assert total == dist.get_world_size()
            assert f"ws{dist.get_world_size()}" in os.environ["PYTEST_CURRENT_TEST"]

        @pytest.mark.world_size([2, 3])
        @pytest.mark.parametrize("factor", [5])
        def test_marked(self, factor, tmpdir):
            seen = [None] * dist.get_world_size()
            dist.all_gather_object(seen, str(tmpdir))
            assert len(set(seen)) == 1 and factor == 5

        @pytest.mark.world_size(2)
        def test_of_one_size(self):
            assert dist.get_world_size() == 2

        @pytest.mark.world_size([1, 2])
        def test_fails_at_one_size(self):
            assert dist.get_world_size() == 1

        @pytest.mark.world_size([1, TOO_MANY])
        def test_too_many(self):
            pass

        def test_stays_with_its_harness(self, world_size):
            dist.barrier()
            assert multiprocessing.parent_process() is not None
"""
ONE = """
    from common import DistributedTest

    class TestIt(DistributedTest):
        def test_it(self):
            pass
"""
FAILED = {
    "TestPool::test_skips_on_one": "AssertionError: Multiple different skip messages received",
    "TestPool::test_fails_on_one": "rank 1: assert 1 == 0",
    "TestPool::test_dies": "rank 1 died of SIGABRT in call",
    "TestPool::test_hangs": "deadlock: ",
    "TestProcesses::test_fails_on_one": "rank 1: assert 1 == 0",
    "TestProcesses::test_exits": "exited with code 3",
    "TestSizes::test_fails_at_one_size[ws2]": "assert 2 == 1",
}
SKIPPED = {
    "TestPool::test_skips",
    "TestProcesses::test_skips",
    "TestSizes::test_too_many[ws4]",
}


@pytest.fixture(scope="module")
def suite_of_launchers(new_suite: Callable[[], Suite]) -> Suite:
    suite = new_suite()
    suite.write("pytest.ini", "[pytest]\nmarkers =\n  world_size: of one test\n")
    suite.write("common.py", HARNESS)
    suite.write("conftest.py", CONFTEST)
    suite.write("test_launched.py", TESTS)
    return suite


@pytest.fixture(scope="module")
def adopted(suite_of_launchers: Suite) -> Finished:
    return suite_of_launchers.run("--ddp-adopt=testcase", timeout=120)


def test_each_has_its_verdict(adopted: Finished) -> None:
    verdicts = {name.partition("::")[2]: result.verdict for name, result in adopted.results.items()}
    due = dict.fromkeys(FAILED, "failed") | dict.fromkeys(SKIPPED, "skipped")
    assert len(verdicts) == 27
    assert verdicts == (
        dict.fromkeys(verdicts, "passed") | due | {"TestPool::test_broken_fixture": "error"}
    ), adopted.tail()
    assert not [text for text in adopted.warnings if "environment" in text]


@pytest.mark.parametrize("name", FAILED)
def test_what_failed_has_the_reason(adopted: Finished, name: str) -> None:
    assert FAILED[name] in adopted[name].phase("call").message
    assert "pytest_ddp/" not in adopted[name].text


def test_without_its_conftest_nothing_has_run(suite: Suite) -> None:
    suite.write("common.py", HARNESS)
    suite.write("test_it.py", ONE)
    found = suite.run("--ddp-adopt=testcase")
    found.assert_outcomes(failed=1)
    assert "TestIt started no process" in found["test_it"].text
