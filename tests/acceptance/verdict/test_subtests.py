"""Subtests in ranks: each is counted and shown as in plain pytest, once for all ranks."""

from __future__ import annotations

import re
from collections.abc import Callable
from xml.etree import ElementTree

import pytest

from tests.acceptance.suite import Finished, Report, Suite, flat

BODY = """
    import os
    import time
    import unittest

    import pytest

    def test_all_good(subtests):
        for number in range(3):
            with subtests.test(number=number):
                pass

    def test_two_of_three(subtests):
        print("before")
        for number in range(3):
            with subtests.test("sizes", number=number):
                print("inside", number)
                assert number == 1

    def test_itself_too(subtests):
        with subtests.test(word="seven"):
            raise ValueError("in the subtest")
        raise KeyError("after the subtest")

    def test_skips_and_xfails(subtests):
        with subtests.test(number=1):
            pytest.skip("not here")
        with subtests.test(number=2):
            pytest.xfail("known")

    class TestCase(unittest.TestCase):
        def test_sub(self):
            for number in range(3):
                with self.subTest(number=number):
                    if number == 2:
                        self.skipTest("enough")
                    self.assertEqual(number, 1, "unlike")

    def test_after():
        pass
"""
PLAIN = f"{BODY}"
RANKS = f"{BODY}\n    pytestmark = pytest.mark.ddp(world_size=2)\n"

OF_RANKS = """
    import os
    import signal
    import time

    import pytest
    import torch
    import torch.distributed as dist

    pytestmark = pytest.mark.ddp(world_size=2)

    def test_one_rank(subtests, ddp):
        for number in range(3):
            with subtests.test(number=number):
                print("words of rank", ddp.rank)
                assert number != 1 or ddp.rank == 0

    def test_own_parts(subtests, ddp):
        for number in range(ddp.rank + 1):
            with subtests.test(number=number):
                pass

    def test_goes_on_for_long_after_a_failure(subtests, ddp):
        with subtests.test(number=0):
            assert ddp.rank == 0
        time.sleep(2.5)
        with subtests.test(number=1):
            tensor = torch.ones(1)
            dist.all_reduce(tensor)
            assert tensor.item() == 2

    def test_dies(subtests, ddp):
        with subtests.test(number=0):
            assert ddp.rank == 0, "before its death"
        with subtests.test(number=1):
            if ddp.rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
        ddp.barrier()

    def test_many(subtests):
        for number in range(2000):
            with subtests.test(number=number):
                pass
"""


@pytest.fixture(scope="module")
def suite(new_suite: Callable[[], Suite]) -> Suite:
    suite = new_suite()
    suite.write("plain/test_suite.py", PLAIN)
    suite.write("ranks/test_suite.py", RANKS)
    suite.write("of_ranks/test_suite.py", OF_RANKS)
    return suite


@pytest.fixture(scope="module")
def plain(suite: Suite) -> Finished:
    return suite.run("plain", "-v", "-rA", "--junitxml=plain.xml")


@pytest.fixture(scope="module")
def run(suite: Suite) -> Finished:
    return suite.run("ranks", "-v", "-rA", "--junitxml=ranks.xml")


@pytest.fixture(scope="module")
def of_ranks(suite: Suite) -> Finished:
    return suite.run("of_ranks", "-v")


def words(run: Finished) -> list[str]:
    """What each subtest has in the progress and in the summary."""
    return sorted(re.findall(r"SUB[A-Z]+(?:\[\w+\])? ?(?:\([^)]*\))?", run.stdout))


def summary(run: Finished) -> list[str]:
    """The short summary's lines, without what ranks and folders add to them."""
    seen = run.stdout.partition("short test summary info")[2]
    return re.sub(r"plain/|ranks/|ranks 0-1: ", "", seen).splitlines()[1:-1]


def verdicts(run: Finished, name: str) -> list[tuple[str, str]]:
    reports = [report for report in run[name].reports if report.when == "call"]
    return [(report.category, report.message) for report in reports]


def call(run: Finished, name: str) -> list[Report]:
    return [report for report in run[name].reports if report.when == "call"]


def test_counts_are_those_of_plain_pytest(run: Finished, plain: Finished) -> None:
    last = r"=+ (.*) in [\d.]+s"
    assert re.findall(last, run.stdout)[-1] == re.findall(last, plain.stdout)[-1]
    assert run.returncode == plain.returncode == 1


def test_words_and_short_summary_are_those_of_plain_pytest(run: Finished, plain: Finished) -> None:
    assert words(run) == words(plain)
    assert summary(run) == summary(plain)
    assert len(summary(run)) == 13


def test_junitxml_is_that_of_plain_pytest(run: Finished, plain: Finished) -> None:
    def cases(finished: Finished, name: str) -> list[tuple[str | None, list[str]]]:
        root = ElementTree.parse(finished.directory / name).getroot()
        return sorted(
            (
                case.get("name"),
                [f"{e.tag} {flat(e.get('message', ''))}".replace("ranks 0-1: ", "") for e in case],
            )
            for case in root.iter("testcase")
        )

    mine = [(name, [e for e in seen if e[0] != "p"]) for name, seen in cases(run, "ranks.xml")]
    assert mine == cases(plain, "plain.xml")


def test_what_a_subtest_prints_is_its_own(run: Finished) -> None:
    first, _, second, whole = call(run, "test_two_of_three")
    assert dict(first.sections) == {"Captured stdout call [ranks 0-1]": "inside 0\n"}
    assert dict(second.sections) == {"Captured stdout call [ranks 0-1]": "inside 2\n"}
    assert dict(whole.sections) == {"Captured stdout call [ranks 0-1]": "before\n"}


def test_one_rank_that_fails_is_named(of_ranks: Finished) -> None:
    assert verdicts(of_ranks, "test_one_rank") == [
        ("subtests passed", ""),
        ("failed", "rank 1: assert (1 != 1 or 1 == 0)"),
        ("subtests passed", ""),
        ("failed", "rank 1: contains 1 failed subtest"),
    ]
    failed = call(of_ranks, "test_one_rank")[1]
    assert dict(failed.sections) == {"Captured stdout call [rank 1]": "words of rank 1\n"}


def test_a_subtest_that_only_some_ranks_have(of_ranks: Finished) -> None:
    assert of_ranks["test_own_parts"].verdict == "subtests passed+subtests passed+passed"


def test_a_failed_subtest_gives_the_others_no_deadline(of_ranks: Finished) -> None:
    assert [
        category for category, _ in verdicts(of_ranks, "test_goes_on_for_long_after_a_failure")
    ] == [
        "failed",
        "subtests passed",
        "failed",
    ]


def test_a_rank_that_dies_leaves_its_subtests(of_ranks: Finished) -> None:
    first, second, whole = verdicts(of_ranks, "test_dies")
    assert first == ("failed", "rank 1: AssertionError: before its death")
    assert second[0] == "subtests passed"
    assert "rank 1 died of SIGKILL in call" in whole[1]


def test_thousands(of_ranks: Finished) -> None:
    assert len(call(of_ranks, "test_many")) == 2001
    assert "2006 subtests passed" in of_ranks.stdout
