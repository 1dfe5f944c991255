"""``--ddp-adopt=testcase``: tests whose class has announced how their processes end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.acceptance.extensions.adopt.test_testcases import PRELUDE
from tests.acceptance.suite import Finished, Suite

DEATHS = (
    PRELUDE
    + """
    class Announced(Each):
        codes = {}
        at_will = ()

        def setUp(self):
            super().setUp()
            name = self._testMethodName
            test = getattr(self, name).__wrapped__
            if name in self.codes:
                self.special_return_code_checks = {test: self.codes[name]}
            elif name in self.at_will:
                self.skip_return_code_checks = [test]

    class TestTold(Announced):
        codes = {
            "test_all_abort": -signal.SIGABRT,
            "test_rank_0_aborts": -signal.SIGABRT,
            "test_another_signal": -signal.SIGABRT,
            "test_nobody_dies": -signal.SIGABRT,
            "test_the_wrong_rank": -signal.SIGABRT,
            "test_exits": 3,
        }
        at_will = ("test_one_is_killed", "test_raises")

        def test_all_abort(self):
            os.abort()

        def test_rank_0_aborts(self):
            if self.rank == 0:
                os.abort()

        def test_another_signal(self):
            os.kill(os.getpid(), signal.SIGTERM)

        def test_nobody_dies(self):
            pass

        def test_the_wrong_rank(self):
            if self.rank == 1:
                os.abort()

        def test_exits(self):
            os._exit(3)

        def test_one_is_killed(self):
            with self.assertRaises(RuntimeError):
                self.init()  # rank 1 may be gone before rank 0 has connected to it
                if self.rank == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                dist.barrier()

        def test_raises(self):
            if self.rank == 1:
                raise ValueError("of rank 1")
"""
)
"""Told alike by torch's harness, which is asked for three of them: each costs it seconds."""
UGLY = (
    DEATHS
    + """
    class TestUgly(Announced):
        codes = {
            "test_one_raises": -signal.SIGABRT,
            "test_another_dies_otherwise": -signal.SIGABRT,
            "test_aborts_once_more": -signal.SIGABRT,
        }
        at_will = ("test_tear_down_aborts", "test_exits_with_the_error_s_code", "test_hangs")

        def tearDown(self):
            super().tearDown()
            if self._testMethodName == "test_tear_down_aborts" and not os.environ.get("PLAIN"):
                os.abort()

        def test_one_raises(self):
            if self.rank == 0:
                os.abort()
            raise ValueError("of rank 1")

        def test_another_dies_otherwise(self):
            os.kill(os.getpid(), signal.SIGKILL if self.rank else signal.SIGABRT)

        def test_tear_down_aborts(self):
            pass

        def test_exits_with_the_error_s_code(self):
            sys.exit(10)

        def test_hangs(self):
            self.init()
            dist.recv(torch.ones(1), 1 - self.rank)

        def test_aborts_once_more(self):
            os.abort()

    class TestBefore(Announced):
        at_will = ("test_set_up_aborts",)

        def setUp(self):
            super().setUp()
            os.abort()

        def test_set_up_aborts(self):
            pass

    class TestAfter(Each):
        def test_new_ranks(self):
            self.init()
            dist.barrier()

        def test_unannounced(self):
            if self.rank == 1:
                os.abort()

    class TestOwnJudge(Each):
        def _check_return_codes(self, fn, elapsed_time):
            self.assertEqual([process.exitcode for process in self.processes], [0, 5])

        def test_is_spawned(self):
            os._exit(5 * self.rank)
"""
)
SAID = {
    "TestTold::test_another_signal": "ranks 0-1 died of SIGTERM in call",
    "TestTold::test_nobody_dies": (
        "rank 0: AssertionError: exit code 0, not -6: the test was to die of SIGABRT"
    ),
    "TestTold::test_the_wrong_rank": (
        "rank 0: AssertionError: exit code 0, not -6: the test was to die of SIGABRT"
    ),
    "TestTold::test_raises": "rank 1: ValueError: of rank 1",
    "TestUgly::test_one_raises": "rank 1: ValueError: of rank 1",
    "TestUgly::test_another_dies_otherwise": "rank 1 died of SIGKILL in call",
    "TestUgly::test_tear_down_aborts": "ranks 0-1 died of SIGABRT in call",
    "TestUgly::test_exits_with_the_error_s_code": "ranks 0-1: AssertionError: exit code 10, not 0",
    "TestUgly::test_hangs": "deadlock: ",
    "TestBefore::test_set_up_aborts": "ranks 0-1 died of SIGABRT in call",
    "TestAfter::test_unannounced": "rank 1 died of SIGABRT in call",
}


@pytest.fixture(scope="module")
def suite_of_deaths(new_suite: Callable[[], Suite]) -> Suite:
    suite = new_suite()
    suite.write("test_told.py", DEATHS)
    suite.write("test_ugly.py", UGLY)
    return suite


@pytest.fixture(scope="module")
def adopted(suite_of_deaths: Suite) -> Finished:
    return suite_of_deaths.run("--ddp-adopt=testcase", "test_ugly.py", timeout=120)


def test_each_has_its_verdict(adopted: Finished) -> None:
    verdicts = {name.partition("::")[2]: result.verdict for name, result in adopted.results.items()}
    assert len(verdicts) == 18
    assert verdicts == dict.fromkeys(verdicts, "passed") | dict.fromkeys(SAID, "failed"), (
        adopted.tail()
    )


@pytest.mark.parametrize("name", SAID)
def test_what_failed_has_the_reason(adopted: Finished, name: str) -> None:
    assert SAID[name] in adopted[name].phase("call").message
    assert "pytest_ddp/" not in adopted[name].text


def test_torch_s_harness_agrees(suite_of_deaths: Suite) -> None:
    asked = "test_rank_0_aborts or test_the_wrong_rank or test_one_is_killed"
    plain = suite_of_deaths.run("test_told.py", "-k", asked, timeout=120, spawns=6)
    assert plain["test_rank_0_aborts"].verdict == "passed"
    assert plain["test_one_is_killed"].verdict == "passed"
    assert plain["test_the_wrong_rank"].verdict == "failed"
