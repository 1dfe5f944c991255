"""Subtests that fail in ranks: each is shown, in the one failure of their test."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.acceptance.suite import Finished, Suite

SUITE = """
    import unittest

    import pytest

    @pytest.mark.ddp(world_size=2)
    def test_two_of_three(subtests, ddp):
        for number in range(3):
            with subtests.test("sizes", number=number):
                assert number == 1 or ddp.rank == 0, f"wrong for {number}"

    @pytest.mark.ddp(world_size=2)
    def test_itself_too(subtests, ddp):
        with subtests.test(number=7):
            assert ddp.world_size < 0, "in the subtest"
        assert ddp.world_size < 0, "after the subtest"

    @pytest.mark.ddp(world_size=2)
    class TestCase(unittest.TestCase):
        def test_sub(self):
            for number in range(3):
                with self.subTest(number=number):
                    self.assertEqual(number, 1, "unlike")

    @pytest.mark.ddp(world_size=2)
    def test_after():
        pass
"""


@pytest.fixture(scope="module")
def run(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("test_suite.py", SUITE)
    return suite.run()


def test_verdicts(run: Finished) -> None:
    run.assert_outcomes(failed=3, passed=1)
    assert run["test_after"].verdict == "passed"


def test_every_failing_subtest_of_the_rank_is_shown(run: Finished) -> None:
    text = run["test_two_of_three"].text
    assert re.findall(r"^subtest .*", text, re.MULTILINE) == [
        "subtest [sizes] (number=0)",
        "subtest [sizes] (number=2)",
    ]
    assert text.index("wrong for 0") < text.index("wrong for 2")
    assert "wrong for 1" not in text
    assert (
        run["test_two_of_three"].phase("call").message.startswith("rank 1: AssertionError: wrong")
    )


def test_a_failure_of_the_test_itself_follows_that_of_its_subtest(run: Finished) -> None:
    text = run["test_itself_too"].text
    assert "ranks 0-1 of 2 failed alike in call" in " ".join(text.split())
    assert text.index("in the subtest") < text.index("after the subtest")


def test_subtests_of_unittest(run: Finished) -> None:
    text = run["TestCase::test_sub"].text
    assert re.findall(r"^subtest .*", text, re.MULTILINE) == [
        "subtest (number=0)",
        "subtest (number=2)",
    ]
