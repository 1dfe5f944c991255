"""What comes between two tests is none's doing: hooks of plugins, the ends of wide fixtures."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.acceptance.recorded import Run, run_recorded
from tests.acceptance.suite import Suite

PLUGIN = """
    import os
    import subprocess
    import threading

    DEEDS = {
        "test_variable": lambda: os.environ.update(BETWEEN="set"),
        "test_directory": lambda: os.chdir("/"),
        "test_thread": lambda: threading.Thread(target=forever, daemon=True).start(),
        "test_child": lambda: KEEP.append(subprocess.Popen(["sleep", "1000"])),
    }
    KEEP = []

    def forever():
        threading.Event().wait()

    def pytest_configure(config):
        if hasattr(config, "workerinput"):
            config.pluginmanager.register(Between())

    class Between:
        def pytest_runtest_logfinish(self, nodeid):
            DEEDS.get(nodeid.rpartition("::")[2], int)()
"""
TESTS = """
    import os
    import signal

    import pytest

    pytestmark = pytest.mark.ddp(world_size=2)

    def test_variable(ddp): pass

    def test_directory(ddp):
        assert os.environ["BETWEEN"] == "set"

    def test_thread(ddp):
        assert os.getcwd() == "/"

    def test_child(ddp): pass

    def test_all_stays(ddp):
        assert os.environ["BETWEEN"] == "set" and os.getcwd() == "/"

    @pytest.fixture(scope="class")
    def takes_our_handler_away():
        yield
        # Python knows nothing of faulthandler's.
        signal.signal(signal.SIGUSR1, signal.getsignal(signal.SIGUSR1))

    @pytest.mark.usefixtures("takes_our_handler_away")
    class TestWide:
        def test_of_class(self, ddp): pass

    def test_signal_ends_no_rank(ddp):
        os.kill(os.getpid(), signal.SIGUSR1)
"""
NAMES = ("variable", "directory", "thread", "child", "all_stays", "of_class", "signal_ends_no_rank")


@pytest.fixture(scope="module")
def run(new_suite: Callable[[], Suite]) -> Run:
    suite = new_suite()
    suite.write("between.py", PLUGIN)
    suite.write("test_between.py", TESTS)
    return run_recorded(suite, "-p", "between")


def test_verdicts(run: Run) -> None:
    run.finished.assert_outcomes(passed=len(NAMES))


@pytest.mark.parametrize("name", NAMES)
def test_nothing_of_it_is_blamed_on_a_test(run: Run, name: str) -> None:
    assert run.warnings_about(f"test_{name}") == []
    assert run.pids(f"test_{name}") == run.pids("test_variable")
