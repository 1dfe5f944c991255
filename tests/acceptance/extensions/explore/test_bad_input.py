"""Options and marks that are wrong, and schedules of something else: errors with the fix."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.acceptance.suite import Suite, flat

SOURCE = """
    import pytest


    @pytest.mark.ddp(world_size=2)
    def test_one(ddp, tmp_path):
        for number in range(2):
            (tmp_path / f"{ddp.rank}.txt").write_text(str(number))


    @pytest.mark.ddp(world_size=2)
    def test_other(ddp):
        pass
"""


@pytest.fixture(scope="module")
def two(new_suite: Callable[[], Suite]) -> Suite:
    suite = new_suite()
    suite.write("test_two.py", SOURCE)
    return suite


REFUSED = {
    "--ddp-explore=2": "--ddp-explore=2: it is how often a test runs at most, 3 or more; 0 for a",
    "--ddp-explore=often": "--ddp-explore=often: it is how often a test runs at most, 3 or more",
    "--ddp-explore=5 --ddp-schedule=0@open:x#1": "a schedule is one run, and exploring chooses",
    "--ddp-schedule=open:x": "has 'open:x', which is no hold; one is written RANK@POINT#NUMBER",
    "--ddp-schedule=0@open:x#0": "a thread passes a point for the first time at '#1'",
    "--ddp-schedule=0@open:x#1": "a schedule is for one test, and 2 ddp tests are selected. Name",
    "--ddp-schedule=0@open:x#1 -k nothing": "a schedule is for one test, and no ddp test is",
    "--ddp-schedule=2@open:x#1 -k one": "test_two.py::test_one has no rank 2; its ranks are 0 to 1",
}


@pytest.mark.parametrize("arguments", REFUSED)
def test_wrong_options_are_usage_errors(two: Suite, arguments: str) -> None:
    run = two.run(*arguments.split(), extra=())
    assert run.returncode == 4
    assert REFUSED[arguments] in run.flat


def test_a_wrong_mark_is_an_error_of_its_test(suite: Suite) -> None:
    suite.write("test_two.py", SOURCE.replace("world_size=2", "world_size=2, explore=2"))
    run = suite.run()
    assert "it is how often a test runs at most, 3 or more; 0 for a test that" in run.flat


def test_a_point_that_is_not_reached_fails_the_test(two: Suite) -> None:
    run = two.run("--ddp-schedule=1@open:1.txt#3", "-k", "one")
    text = run["test_one"].text
    assert flat(text).startswith(
        "rank 1 passed open(1.txt) 2 times, so it was not held before the 3rd"
    )
