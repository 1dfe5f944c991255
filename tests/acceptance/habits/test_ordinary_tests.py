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
        if "RANK" not in os.environ and (late := os.environ.get("FAIL_LATE")):
            errors = {"exit": pytest.exit.Exception, "ctrl-c": KeyboardInterrupt}
            raise errors.get(late, ValueError)("too late")


    def test_ordinary():
        pass


    @pytest.mark.ddp(world_size=1)
    def test_ddp_at_the_end(ddp):
        pass
"""
FINISHED = """
    def pytest_ddp_test_finished(item, reports):
        phases = [f"{report.when} {report.outcome}" for report in reports]
        print(f"finished {item.name}: {', '.join(phases)}.")
"""


@pytest.mark.parametrize("late", [None, "1"])
def test_module_that_ends_with_a_ddp_test_is_torn_down(suite: Suite, late: str | None) -> None:
    suite.write("conftest.py", FINISHED)
    suite.write("test_first.py", FIRST)
    suite.write("test_second.py", "def test_next(): pass")
    # In one process: xdist may give the module's tests to two.
    finished = suite.run("-s", env={"FAIL_LATE": late}, extra=())
    finished.assert_outcomes(passed=3, error=1 if late else 0)
    phases = [f"{r.when} {r.outcome}" for r in finished["test_ddp_at_the_end"].reports]
    assert f"finished test_ddp_at_the_end: {', '.join(phases)}." in finished.stdout
    if late:
        assert "too late" in finished["test_ddp_at_the_end"].text


@pytest.mark.parametrize("late", ["exit", "ctrl-c"])
def test_that_teardown_may_end_the_session(suite: Suite, late: str) -> None:
    suite.write("test_first.py", FIRST)
    suite.write("test_second.py", "def test_next(): pass")
    finished = suite.run(env={"FAIL_LATE": late}, extra=())
    assert finished.returncode == pytest.ExitCode.INTERRUPTED
    finished.assert_outcomes(passed=2)
    assert ("Exit: too late" if late == "exit" else "KeyboardInterrupt") in finished.output


@pytest.mark.parametrize("ddp", [False, True])
def test_module_that_cannot_be_collected_is_an_error_and_no_more(suite: Suite, ddp: bool) -> None:
    suite.write("test_broken.py", "raise ValueError('not for import')")
    if ddp:
        suite.write(
            "test_failing.py",
            """
            import pytest

            @pytest.mark.ddp(world_size=1)
            def test_failing(ddp):
                assert ddp.rank == 1
            """,
        )
    else:
        suite.write("test_failing.py", "def test_failing(): assert False")
    finished = suite.run("--continue-on-collection-errors", extra=())  # xdist gives up on them
    assert finished.returncode == pytest.ExitCode.TESTS_FAILED
    assert "INTERNALERROR" not in finished.output
    assert "AttributeError" not in finished.output
    assert "1 failed, 1 error in" in finished.output
