"""Ordinary tests beside ddp tests: their fixtures live and end as if those were ordinary."""

from __future__ import annotations

import pytest

from tests.acceptance.suite import Suite

FIRST = """
    import os
    import pytest


    @pytest.fixture(scope="module", autouse=True)
    def wide():
        yield
        if "FAIL_LATE" in os.environ and "RANK" not in os.environ:
            raise ValueError("too late")


    def test_ordinary():
        pass


    @pytest.mark.ddp(world_size=1)
    def test_ddp_at_the_end(ddp):
        pass
"""


@pytest.mark.parametrize("late", [None, "1"])
def test_module_that_ends_with_a_ddp_test_is_torn_down(suite: Suite, late: str | None) -> None:
    suite.write("test_first.py", FIRST)
    suite.write("test_second.py", "def test_next(): pass")
    finished = suite.run(env={"FAIL_LATE": late})
    finished.assert_outcomes(passed=3, error=1 if late else 0)
    if late:
        assert "too late" in finished["test_ddp_at_the_end"].text
