"""``--ddp-adopt=testcase``: torch's own test cases of several processes, on ranks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.acceptance.suite import Finished, Suite

PRELUDE = """
    import os
    import shutil
    import signal
    import sys
    import tempfile
    import time
    import unittest

    import torch
    import torch.distributed as dist
    from torch.testing._internal.common_distributed import (
        DistributedTestBase,
        MultiProcContinuousTest,
        MultiProcessTestCase,
        skip_if_lt_x_gpu,
    )
    from torch.testing._internal.common_utils import (
        instantiate_parametrized_tests,
        parametrize,
    )

    class Each(MultiProcessTestCase):
        world_size = 2

        def setUp(self):
            super().setUp()
            self.of_main_process = True
            os.environ["OF_SETUP"] = "1"
            self._spawn_processes()

        def init(self):
            store = dist.FileStore(self.file_name, self.world_size)
            dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.world_size)
"""

BOTH = (
    PRELUDE
    + """
    class TestBoth(Each):
        def test_passes(self):
            self.init()
            total = torch.tensor(self.rank)
            dist.all_reduce(total)
            self.assertEqual(total, 1)
            self.assertFalse(hasattr(self, "of_main_process"))
            self.assertEqual(os.environ["OF_SETUP"], "1")

        def test_fails_on_one(self):
            self.assertEqual(self.rank, 0)

        @skip_if_lt_x_gpu(8)
        def test_skips(self):
            raise AssertionError
"""
)
"""Told alike by torch's harness, which spawns two interpreters for each."""

TRUE = (
    PRELUDE
    + """
    class TestEach(Each):
        def test_leaves_its_group(self):
            self.init()
            dist.barrier()

        def test_finds_no_group(self):
            self.assertFalse(dist.is_initialized())

        def test_exits_early(self):
            if self.rank == 1:
                os._exit(0)

        def test_is_killed(self):
            if self.rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)

        def test_hangs(self):
            self.init()
            if self.rank == 0:
                dist.barrier()
            else:
                dist.recv(torch.ones(1), 0)

        @unittest.skip("of unittest")
        def test_skips(self):
            raise AssertionError

        def test_exits_with_a_code(self):
            sys.exit(3)

    class TestCodes(Each):
        def setUp(self):
            super().setUp()
            test = getattr(self, self._testMethodName).__wrapped__
            if "as_said" in self._testMethodName:
                self.special_return_code_checks = {test: 3}
            else:
                self.skip_return_code_checks = [test]

        def test_exits_as_said(self):
            sys.exit(3)

        def test_exits_at_will(self):
            sys.exit(self.rank)

    @instantiate_parametrized_tests
    class TestParameters(Each):
        @parametrize("offset", [0, 1])
        def test_sum(self, offset):
            self.assertLess(self.rank + offset, 3)

    class TestMainProcess(Each):
        def setUp(self):
            os.environ["OF_SETUP_DIR"] = tempfile.mkdtemp()
            super().setUp()

        def tearDown(self):
            shutil.rmtree(os.environ["OF_SETUP_DIR"])
            super().tearDown()

        def test_its_folder_is_everybody_s_until_all_have_ended(self):
            self.file_name = os.environ["OF_SETUP_DIR"] + "/store"
            self.init()
            dist.barrier()
            if self.rank == 1:
                time.sleep(0.3)
            self.assertTrue(os.path.exists(self.file_name))
            self.assertNotIn("RANK", os.environ)

    class TestBase(DistributedTestBase):
        @property
        def world_size(self):
            return 3

        def test_group_by_device(self):
            self.create_pg("cpu")
            dist.barrier()
            self.assertEqual(dist.get_world_size(), 3)

    class TestOnce(MultiProcContinuousTest):
        world_size = 2

        @classmethod
        def device_type(cls):
            return "cpu"

        @classmethod
        def backend_str(cls):
            return "gloo"

        def test_1_group_of_the_class(self):
            type(self).mine = dist.group.WORLD
            dist.barrier()
            self.assertEqual((self.rank, self.world_size), (dist.get_rank(), 2))

        def test_2_same_group(self):
            self.assertIs(self.mine, dist.group.WORLD)

        def test_3_fails_on_one(self):
            self.assertEqual(self.rank, 0)

        def test_4_is_no_victim(self):
            dist.barrier()

        def test_5_needs_gpus(self):
            self.skipTest("no GPU")
"""
)
FAILED = {
    "TestBoth::test_fails_on_one": "rank 1: AssertionError: Scalars are not equal!",
    "TestEach::test_exits_early": "rank 1 exited with code 0 before reporting call",
    "TestEach::test_is_killed": "rank 1 died of SIGKILL in call",
    "TestEach::test_hangs": "deadlock: ",
    "TestEach::test_exits_with_a_code": "ranks 0-1: AssertionError: exit code 3, not 0",
    "TestOnce::test_3_fails_on_one": "rank 1: AssertionError: Scalars are not equal!",
}
SKIPPED = {"TestBoth::test_skips", "TestEach::test_skips", "TestOnce::test_5_needs_gpus"}


CONNECTING = """
    import contextlib
    import subprocess

    @contextlib.contextmanager
    def starved(is_so):
        # In the block the main thread gets hardly any time, and what it starts gets its own.
        if not is_so:
            yield
            return
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {min(before)})
        busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        os.sched_setscheduler(0, os.SCHED_IDLE | os.SCHED_RESET_ON_FORK, os.sched_param(0))
        try:
            yield
        finally:
            busy.kill()
            busy.wait()
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
            os.sched_setaffinity(0, before)

    class TestConnecting(Each):
        world_size = 3

        def make(self, late):
            with starved(self.rank == late):
                self.init()
            self.assertEqual(dist.get_rank(), self.rank)

        def test_late_0(self):
            self.make(0)

        def test_late_1(self):
            self.make(1)

        def test_late_2(self):
            self.make(2)

        def test_some_make_none(self):
            if self.rank < 2:
                store = dist.FileStore(self.file_name, 2)
                dist.init_process_group("gloo", store=store, rank=self.rank, world_size=2)

        def test_in_a_group_of_some(self):
            self.init()
            dist.new_group([0, 1])

        def test_file_is_gone(self):
            self.init()
            dist.barrier()
            if self.rank == 0:
                os.remove(self.file_name)
"""
END_OF_A_PEER = """
    class TestEnd(Each):
        def test_end_of_a_peer(self):
            self.init()
            dist.barrier()  # without it torch's harness fails where rank 0 ends too early
            if self.rank == 1:
                with self.assertRaises(RuntimeError):
                    dist.recv(torch.ones(1), src=0)
"""


@pytest.fixture(scope="module")
def suite_of_torch(new_suite: Callable[[], Suite]) -> Suite:
    suite = new_suite()
    suite.write("test_both.py", BOTH)
    suite.write("test_true.py", TRUE)
    return suite


@pytest.fixture(scope="module")
def adopted(suite_of_torch: Suite) -> Finished:
    return suite_of_torch.run("--ddp-adopt=testcase", timeout=120)


def test_each_has_its_verdict(adopted: Finished) -> None:
    verdicts = {name.partition("::")[2]: result.verdict for name, result in adopted.results.items()}
    due = dict.fromkeys(FAILED, "failed") | dict.fromkeys(SKIPPED, "skipped")
    assert len(verdicts) == 21
    assert verdicts == dict.fromkeys(verdicts, "passed") | due
    assert not [text for text in adopted.warnings if "environment" in text]


@pytest.mark.parametrize("name", FAILED)
def test_what_failed_has_the_reason(adopted: Finished, name: str) -> None:
    assert FAILED[name] in adopted[name].phase("call").message
    assert "pytest_ddp/" not in adopted[name].text


def test_torch_s_harness_agrees_where_its_verdict_is_right(suite_of_torch: Suite) -> None:
    plain = suite_of_torch.run("test_both.py", timeout=120, spawns=6)
    plain.assert_outcomes(passed=1, failed=1, skipped=1)
    assert plain["test_fails_on_one"].verdict == "failed"


def test_a_group_is_there_until_all_peers_have_connected(suite: Suite) -> None:
    suite.write("test_connecting.py", PRELUDE + CONNECTING)
    suite.run("--ddp-adopt=testcase", timeout=120).assert_outcomes(passed=6)


def test_a_group_is_there_no_longer_than_that(suite: Suite) -> None:
    """What waits for a peer's end is not held up, neither here nor with torch's harness."""
    suite.write("test_end_of_a_peer.py", PRELUDE + END_OF_A_PEER)
    suite.run("--ddp-adopt=testcase", timeout=120).assert_outcomes(passed=1)
    suite.run(timeout=120, spawns=6).assert_outcomes(passed=1)


def test_a_world_size_of_the_set_up_is_refused(suite: Suite) -> None:
    source = """
    class TestLate(MultiProcessTestCase):
        @property
        def world_size(self):
            return self.known_in_setup

        def test_it(self):
            pass
"""
    suite.write("test_late.py", PRELUDE + source)
    found = suite.run("--ddp-adopt=testcase")
    assert found.returncode == pytest.ExitCode.INTERRUPTED
    assert "the world size of TestLate is not known before its set-up (AttributeError" in found.flat


def test_a_wrong_name_is_refused(suite: Suite) -> None:
    found = suite.run("--ddp-adopt=testcase,spwan")
    assert found.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--ddp-adopt=testcase,spwan: it is all, or a list of testcase and spawn." in found.flat
