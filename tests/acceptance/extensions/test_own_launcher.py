"""A launcher and a layout of somebody else's, written from the page of the hookspecs alone."""

from __future__ import annotations

import os

import pytest

from tests.acceptance.suite import EXTRA_ARGS, Finished, Suite

LAUNCHER = """
    from pytest_ddp.launch.host_process import start_host
    from pytest_ddp.launch.launcher import Launcher


    class NiceLauncher(Launcher):
        def start_host(self, theirs, folder, log):
            started_by = {"STARTED_BY": "a conftest file"}
            prefix = ("nice", "-n", "2")
            return start_host(theirs, folder, log, environment=started_by, prefix=prefix)


    def pytest_ddp_make_launcher(config, session, display):
        return NiceLauncher(session, display)
"""
TESTS = """
    import os
    import signal

    import pytest


    @pytest.mark.ddp(world_size=2)
    def test_place(ddp):
        print(f"@rank {ddp.rank}: {os.environ['STARTED_BY']}, {os.nice(0)}")
        assert ddp.gather(ddp.rank) == [0, 1]


    @pytest.mark.ddp(world_size=2)
    def test_failed(ddp):
        assert ddp.rank == 0


    @pytest.mark.ddp(world_size=2)
    def test_died(ddp):
        if ddp.rank == 1:
            os.kill(os.getppid(), signal.SIGKILL)
            signal.pause()
        ddp.barrier()


    @pytest.mark.ddp(world_size=2)
    def test_after_it(ddp):
        print(f"@rank {ddp.rank}: {os.environ['STARTED_BY']}, {os.nice(0)}")


    def test_plain():
        assert "STARTED_BY" not in os.environ
"""
LAYOUT = """
    from pytest_ddp.settings.layout import OneMachine, Placement


    class Slots(OneMachine):
        def place(self, wanted, nodes, chosen):
            if wanted > 3:
                return Placement(wanted, skip=f"{wanted} slots needed, 3 here")
            return super().place(wanted, nodes, chosen)


    def pytest_ddp_make_layout(config):
        return Slots(0)
"""


@pytest.fixture(scope="module", params=["fork", "spawn"])
def run(request: pytest.FixtureRequest, new_suite: type[Suite]) -> Finished:
    suite = new_suite()
    suite.write("conftest.py", LAUNCHER)
    suite.write("test_all.py", TESTS)
    return suite.run(f"--ddp-start-method={request.param}", "--ddp-output=all", "-rA", *EXTRA_ARGS)


def test_verdicts_are_those_of_the_core(run: Finished) -> None:
    verdicts = {name.rpartition(":")[2]: each.verdict for name, each in run.results.items()}
    names = ("test_place", "test_failed", "test_died", "test_after_it", "test_plain")
    expected = ("passed", "failed", "error", "passed", "passed")
    assert verdicts == dict(zip(names, expected, strict=True)), run.tail()


def test_ranks_are_as_it_started_them_also_after_its_host_died(run: Finished) -> None:
    nice = min(os.nice(0) + 2, 19)
    for rank in (0, 1):
        said = f"@rank {rank}: a conftest file, {nice}"
        assert run.stdout.count(said) == 2, run.tail()


REFUSING = """
    import pytest


    def pytest_ddp_make_launcher():
        raise pytest.UsageError("no node is free")
"""


@pytest.mark.parametrize("args", [(), ("test_all.py",)], ids=["folder", "file"])
def test_refusal_to_make_one_is_a_usage_error(suite: Suite, args: tuple[str, ...]) -> None:
    suite.write("conftest.py", REFUSING)
    suite.write("test_all.py", TESTS)
    finished = suite.run(*args, extra=())
    assert finished.returncode == pytest.ExitCode.USAGE_ERROR, finished.tail()
    assert "ERROR: no node is free\n" in finished.stderr
    assert "Traceback" not in finished.output
    assert "conftest.py" not in finished.output


def test_refusal_to_make_one_fails_each_test_under_xdist(suite: Suite) -> None:
    suite.write("conftest.py", REFUSING)
    suite.write("test_all.py", TESTS)
    finished = suite.run("-n", "1", extra=())
    finished.assert_outcomes(error=4, passed=1)
    assert "no rank can be started: no node is free" in finished["test_place"].text


def test_refusal_to_make_one_leaves_a_suite_without_ranks_alone(suite: Suite) -> None:
    """The pre-scan sees a mark in a file whose tests are deselected."""
    suite.write("conftest.py", REFUSING)
    suite.write("test_all.py", TESTS)
    finished = suite.run("-k", "test_plain", extra=())
    finished.assert_outcomes(passed=1)


def test_tests_without_ranks_run_without_a_launcher(suite: Suite) -> None:
    suite.write(
        "conftest.py",
        """
        from pytest_ddp.launch.launcher import NoRankError


        def pytest_ddp_make_launcher():
            raise NoRankError("no node is free")
        """,
    )
    suite.write("test_all.py", TESTS)
    finished = suite.run(extra=())
    finished.assert_outcomes(error=4, passed=1)
    assert "no rank can be started: no node is free" in finished["test_place"].text


def test_a_layout_decides_what_can_run(suite: Suite) -> None:
    suite.write("conftest.py", LAYOUT)
    suite.write(
        "test_all.py",
        """
        import pytest


        @pytest.mark.ddp(world_size=[2, 4])
        def test_sizes(ddp): ...
        """,
    )
    finished = suite.run("-rs", extra=())
    finished.assert_outcomes(passed=1, skipped=1)
    assert "4 slots needed, 3 here" in finished.stdout
