"""Ranks that die when their own part is over: while peers still work, and after the last test."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable

import pytest

from tests.acceptance.suite import LOADFILE, UNDER_XDIST, Finished, Suite, flat

WHILE_PEERS_WORK = """
    import os
    import signal
    import threading
    import time

    import pytest
    import torch
    import torch.distributed as dist

    def kill_the_other(ddp, number):
        pids = ddp.gather(os.getpid())
        if ddp.rank == 0:
            time.sleep(0.5)
            os.kill(pids[1], number)
            time.sleep(0.5)

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
    @pytest.mark.ddp(world_size=2)
    def test_killed(ddp, number):
        kill_the_other(ddp, number)

    @pytest.mark.parametrize("code", [0, 3])
    @pytest.mark.ddp(world_size=2)
    def test_leaves(ddp, code):
        if ddp.rank == 1:
            timer = threading.Timer(2, os._exit, (code,))
            timer.daemon = True
            timer.start()
        else:
            time.sleep(3)

    @pytest.mark.ddp(world_size=3)
    def test_then_communicates(ddp):
        group = dist.new_group([0, 1])
        kill_the_other(ddp, signal.SIGKILL)
        if ddp.rank == 0:
            dist.all_reduce(torch.ones(1), group=group)

    @pytest.mark.ddp(world_size=2)
    def test_then_exchanges(ddp):
        kill_the_other(ddp, signal.SIGKILL)
        if ddp.rank == 0:
            ddp.barrier()

    @pytest.mark.xfail
    @pytest.mark.ddp(world_size=2)
    def test_expected_to_fail(ddp):
        kill_the_other(ddp, signal.SIGKILL)
        assert ddp.rank == 1

    @pytest.mark.ddp(world_size=2)
    def test_good(ddp):
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        assert tensor == 2
"""

HOST = """
    import os
    import signal
    import time
    from pathlib import Path

    import pytest

    pid = Path(__file__).with_name("pid")

    @pytest.mark.ddp(world_size=2)
    def test_before(ddp):
        pid.write_text(str(os.getppid()))

    def test_plain():
        os.kill(int(pid.read_text()), signal.SIGKILL)
        time.sleep(0.5)

    if {more}:
        @pytest.mark.ddp(world_size=2)
        def test_after(ddp):
            ddp.barrier()
"""

SLOW_END = """
    import atexit
    import time
    from pathlib import Path

    import pytest

    @pytest.mark.ddp(world_size=2)
    def test_it(ddp):
        atexit.register(time.sleep, 5)
        atexit.register(Path(__file__).with_name(f"ending-{ddp.rank}").touch)
"""

AFTER_ALL = """
    import os
    import signal
    import time
    from pathlib import Path

    import pytest

    pids = Path(__file__).with_name("pids")

    @pytest.mark.ddp(world_size=2)
    def test_it(ddp):
        pids.with_suffix(f".{ddp.rank}").write_text(str(os.getpid()))

    @pytest.mark.ddp(world_size=3)
    def test_in_another_pool(ddp):
        pass
"""

KILLS = """
    import os
    import signal
    import time
    from pathlib import Path

    import pytest

    def kill():
        if "RANK" in os.environ:
            return
        os.kill(int(Path(__file__).with_name("pids.1").read_text()), signal.SIGKILL)
        time.sleep(float(os.environ["SECONDS"]))

    def pytest_runtest_logreport(report):
        if os.environ["MOMENT"] == f"{report.nodeid.partition('::')[2]} {report.when}":
            kill()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish():
        if os.environ["MOMENT"] == "end":
            kill()
        return (yield)
"""


@pytest.fixture(scope="module")
def while_peers_work(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("test_it.py", WHILE_PEERS_WORK)
    return suite.run(*LOADFILE)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("test_killed[9]", "rank 1 died of SIGKILL after reporting teardown"),
        ("test_killed[11]", "rank 1 died of SIGSEGV after reporting teardown"),
        ("test_leaves[0]", "rank 1 exited with code 0 after reporting teardown"),
        ("test_leaves[3]", "rank 1 exited with code 3 after reporting teardown"),
    ],
)
def test_it_is_an_error_of_the_test_that_others_still_run(
    while_peers_work: Finished, name: str, words: str
) -> None:
    result = while_peers_work[name]
    assert result.verdict == "passed+error"
    assert words in flat(result.text)


@pytest.mark.parametrize("name", ["test_then_communicates", "test_then_exchanges"])
def test_what_peers_suffer_from_it_is_reported_as_its_consequence(
    while_peers_work: Finished, name: str
) -> None:
    result = while_peers_work[name]
    assert result.verdict == "failed"
    assert "rank 1 died of SIGKILL after reporting teardown" in flat(result.phase("call").message)


def test_it_is_never_what_was_expected(while_peers_work: Finished) -> None:
    assert while_peers_work["test_expected_to_fail"].verdict == "xfailed+error"


def test_the_next_test_has_all_its_ranks(while_peers_work: Finished) -> None:
    assert while_peers_work["test_good"].verdict == "passed"
    assert "outside of the tests" not in while_peers_work.output


@pytest.mark.parametrize("seconds", [0.0, 0.3])
@pytest.mark.parametrize(
    "moment",
    [
        "test_it setup",
        "test_it teardown",
        "test_in_another_pool setup",
        "test_in_another_pool teardown",
        "end",
    ],
)
def test_a_death_after_the_verdict_is_reported_and_no_success(
    suite: Suite, moment: str, seconds: float
) -> None:
    suite.write("conftest.py", KILLS)
    suite.write("test_it.py", AFTER_ALL)
    environment = {"MOMENT": moment, "SECONDS": str(seconds)}
    finished = suite.run(*LOADFILE, env=environment)
    finished.assert_outcomes(passed=2)
    assert finished.returncode == pytest.ExitCode.TESTS_FAILED
    shown = finished.output.partition("error outside of the tests")[2]
    assert re.search("The rank died of SIGKILL (between two tests|before the end)", flat(shown))


@pytest.mark.parametrize("more", [False, True], ids=["last", "between"])
def test_the_death_of_an_idle_host_is_reported_and_fails_no_test(suite: Suite, more: bool) -> None:
    suite.write("test_it.py", HOST.format(more=more))
    finished = suite.run(*LOADFILE)
    finished.assert_outcomes(passed=2 + more)
    assert finished.returncode == pytest.ExitCode.TESTS_FAILED
    shown = finished.output.partition("error outside of the tests")[2]
    assert "the host process of the ranks died of SIGKILL between two tests" in flat(shown)


@pytest.mark.skipif(UNDER_XDIST, reason="xdist's workers are not interrupted")
def test_an_interrupt_while_ranks_end_is_no_success(suite: Suite) -> None:
    suite.write("test_it.py", SLOW_END)
    running = suite.start()
    limit = time.monotonic() + 120
    while not list(suite.directory.glob("ending-*")) and time.monotonic() < limit:
        time.sleep(0.05)
    os.kill(running.pid, signal.SIGINT)
    finished = running.finish(60)
    finished.assert_outcomes(passed=1)
    assert finished.returncode == pytest.ExitCode.INTERRUPTED
