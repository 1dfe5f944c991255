"""Plugins that are not ours and use our hooks: a conftest file here."""

from __future__ import annotations

import pytest

from tests.acceptance.suite import EXTRA_ARGS, Finished, Suite, flat

CONFTEST = """
    import pytest
    from pytest_ddp.asked.mark import MarkArgument
    from pytest_ddp.asked.marks import MARK


    def small(value):
        if type(value) is not int or value > 9:
            raise ValueError("it is a number of at most 9")
        return value


    def pytest_ddp_mark_arguments():
        return {"limit": MarkArgument(small, "limit is at most 9")}


    def pytest_ddp_fixture_attributes(ddp):
        return {"twice": 2 * ddp.rank}
"""
TESTS = """
    import pytest


    @pytest.mark.ddp(world_size=2, limit=3)
    def test_attribute(ddp):
        assert ddp.gather(ddp.twice) == [0, 2]


    @pytest.mark.ddp(world_size=2)
    def test_of_the_core(ddp):
        assert ddp.gather(ddp.rank) == [0, 1]
"""
WRONG = """
    import pytest

    pytestmark = pytest.mark.ddp(limit=8)


    @pytest.mark.ddp(limit=12)
    def test_value(): pass

    @pytest.mark.ddp(limits=1)
    def test_name(): pass
"""


@pytest.fixture(scope="module")
def run(new_suite: type[Suite]) -> Finished:
    suite = new_suite()
    suite.write("conftest.py", CONFTEST)
    suite.write("test_all.py", TESTS)
    return suite.run(*EXTRA_ARGS)


def test_tests_pass(run: Finished) -> None:
    run.assert_outcomes(passed=2)


def test_wrong_arguments_are_refused(suite: Suite) -> None:
    suite.write("conftest.py", CONFTEST)
    suite.write("test_wrong.py", WRONG)
    out = suite.run().flat
    assert "test_value: @pytest.mark.ddp(limit=12): it is a number of at most 9." in out
    assert "@pytest.mark.ddp(limits=1): no such argument. Did you mean limit?" in out


def test_the_mark_is_listed_with_them(suite: Suite) -> None:
    suite.write("conftest.py", CONFTEST)
    assert "By plugins: limit is at most 9." in flat(suite.run("--markers").stdout)
