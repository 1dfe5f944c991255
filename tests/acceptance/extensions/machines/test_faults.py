"""What goes wrong with machines: each has a clear text, an end in time, and leaves nobody."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.acceptance.extensions.machines.cluster import Cluster, Session, wait_for
from tests.acceptance.suite import Suite, flat

DEATHS = """
    import os
    import signal
    import socket
    import time

    import pytest
    import torch
    import torch.distributed as dist

    pytestmark = pytest.mark.ddp(world_size=4, timeout=60)


    def parent_of(pid):
        return int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])


    def test_before(ddp):
        dist.barrier()


    def test_host_killed(ddp):
        if ddp.rank == 3:
            time.sleep(1)  # machines report where their ranks are five times a second
            os.kill(os.getppid(), signal.SIGKILL)
            signal.pause()
        dist.barrier()


    def test_after_death_of_host(ddp):
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == 4


    def test_agent_killed(ddp):
        if ddp.rank == 3:
            time.sleep(1)  # machines report where their ranks are five times a second
            os.kill(parent_of(os.getppid()), signal.SIGKILL)
            signal.pause()
        dist.barrier()


    def test_after_death_of_agent(ddp):
        pass


    @pytest.mark.ddp(world_size=2, nodes=1)
    def test_on_what_is_left(ddp):
        dist.barrier()
        assert ddp.gather(socket.gethostname()) == ["alpha", "alpha"]
"""


OF_DEATHS = {
    "test_before": "passed",
    "test_host_killed": "failed",
    "test_after_death_of_host": "passed",
    "test_agent_killed": "failed",
    "test_after_death_of_agent": "error",
    "test_on_what_is_left": "passed",
}


@pytest.fixture(scope="module")
def deaths(cluster: Cluster, new_suite: Callable[[], Suite]) -> Session:
    suite = new_suite()
    suite.write("test_deaths.py", DEATHS)
    return cluster.run(suite)


def test_verdicts_of_deaths(deaths: Session) -> None:
    assert deaths.verdicts == OF_DEATHS, deaths.text


def test_a_host_that_is_killed_is_named(deaths: Session) -> None:
    text = flat(deaths.alpha["test_host_killed"].text)
    assert "went with the host of node 1, which ended with code -9" in text


def test_a_machine_that_is_lost_is_named(deaths: Session) -> None:
    text = flat(deaths.alpha["test_agent_killed"].text)
    assert "went with its machine: node 1 (beta) is lost: connection" in text


def test_what_needs_a_lost_machine_fails(deaths: Session) -> None:
    text = flat(deaths.alpha["test_after_death_of_agent"].text)
    assert "cannot run: node 1 (beta) is lost: connection" in text


def test_nothing_survives_deaths(cluster: Cluster, deaths: Session) -> None:
    assert deaths.alpha.returncode == 1
    assert cluster.survivors_after(3) == []


COORDINATOR = """
    import os
    import signal

    import pytest

    pytestmark = pytest.mark.ddp(world_size=4, timeout=60)


    def parent_of(pid):
        return int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])


    def test_hub_killed(ddp):
        if ddp.rank == 0:
            agent = parent_of(os.getppid())
            os.kill(parent_of(agent), signal.SIGKILL)
        signal.pause()


    def test_later(ddp):
        pass
"""
LONG = """
    import os
    import signal
    import time

    import pytest
    import torch.distributed as dist


    def parent_of(pid):
        return int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])


    @pytest.mark.ddp(world_size=4, timeout=60)
    def test_long(ddp):
        if ddp.rank == 3:
            agent = parent_of(os.getppid())
            with open("agent", "w") as file:
                file.write(str(agent))
            if os.environ.get("STOPS"):
                time.sleep(1)
                os.kill(agent, signal.SIGSTOP)
            os.rename("agent", "begun")
        time.sleep(40)
"""


TORN_DOWN = """
    import os
    import pathlib

    import pytest

    @pytest.fixture(scope="session", autouse=True)
    def wide():
        yield
        if "RANK" in os.environ:
            pathlib.Path(f"torn_down_{os.environ['RANK']}").touch()
"""


def begun(suite: Suite) -> int:
    """The agent's pid, once the test has begun."""
    file = suite.directory / "begun"
    wait_for(file)
    return int(file.read_text())


def test_nothing_survives_a_kill_of_pytest(cluster: Cluster, suite: Suite) -> None:
    suite.write("test_a.py", LONG)
    alpha, beta = cluster.start(suite)
    begun(suite)
    os.kill(alpha.pid, signal.SIGKILL)
    assert cluster.survivors_after(5) == []
    alpha.finish(10)
    assert beta.finish(10).returncode == 1


def test_a_hub_that_is_killed_ends_all_machines(cluster: Cluster, suite: Suite) -> None:
    suite.write("test_a.py", COORDINATOR)
    session = cluster.run(suite)
    assert session.alpha["test_hub_killed"].verdict == "error", session.text
    assert "the coordinator of the machines has ended" in flat(session.alpha["test_later"].text)
    assert (session.alpha.returncode, session.beta.returncode) == (1, 1), session.text
    assert "pytest on node 0 is gone: connection closed" in flat(session.beta.output)
    assert cluster.survivors_after(3) == []


def test_ctrl_c_ends_both_as_it_ends_pytest(cluster: Cluster, suite: Suite) -> None:
    suite.write("test_a.py", LONG)
    suite.write("conftest.py", TORN_DOWN)
    alpha, beta = cluster.start(suite)
    begun(suite)
    os.kill(alpha.pid, signal.SIGINT)
    finished = alpha.finish(30)
    assert finished.returncode == pytest.ExitCode.INTERRUPTED, finished.tail()
    assert beta.finish(30).returncode == pytest.ExitCode.INTERRUPTED
    torn_down = {file.name for file in suite.directory.glob("torn_down_*")}
    assert torn_down == {f"torn_down_{rank}" for rank in range(4)}, finished.tail()
    assert cluster.survivors_after(3) == []


def test_a_network_that_hangs_is_a_lost_machine(cluster: Cluster, suite: Suite) -> None:
    """No message ends the connection, on either side."""
    suite.write("test_a.py", LONG)
    alpha, beta = cluster.start(suite)
    begun(suite)
    time.sleep(1)
    with cluster.cut():
        result = alpha.finish(90)["test_long"]
        left = beta.finish(30)
        assert cluster.survivors_after(3) == []
    assert "node 1 (beta) is lost: gave no sign of life for 5 s" in flat(result.text)
    assert result.verdict == "failed"
    assert left.returncode == 1
    assert "pytest on node 0 is gone: no sign of life for 10 s" in flat(left.output)


def test_an_agent_that_is_suspended_is_lost_after_5_seconds(cluster: Cluster, suite: Suite) -> None:
    """A suspended agent cannot end its ranks; it ends them as soon as it goes on."""
    suite.write("test_a.py", LONG)
    alpha, beta = cluster.start(suite, env={"STOPS": "1"})
    agent = begun(suite)
    finished = alpha.finish(90)
    os.kill(agent, signal.SIGCONT)
    result = finished["test_long"]
    assert result.verdict == "failed"
    assert "node 1 (beta) is lost: gave no sign of life for 5 s" in flat(result.text)
    assert "timed out after" not in result.text
    assert beta.finish(30).returncode == 1
    assert cluster.survivors_after(3) == []


PASSING = """
    import pytest


    @pytest.mark.ddp(world_size=2)
    def test_passes(ddp):
        ddp.barrier()
"""


def test_a_session_that_passes_ends_with_0_on_both(cluster: Cluster, suite: Suite) -> None:
    suite.write("test_a.py", PASSING)
    session = cluster.run(suite)
    assert (session.alpha.returncode, session.beta.returncode) == (0, 0), session.text
    session.alpha.assert_outcomes(passed=1)
    assert session.later < 3, session.text
    assert cluster.survivors_after(3) == []


def test_a_session_without_ddp_tests_ends_the_agents_too(cluster: Cluster, suite: Suite) -> None:
    suite.write("test_a.py", "def test_plain(): pass")
    session = cluster.run(suite)
    assert (session.alpha.returncode, session.beta.returncode) == (0, 0), session.text
    assert cluster.survivors_after(3) == []


def test_other_content_of_a_test_file_is_an_error(
    cluster: Cluster, suite: Suite, tmp_path: Path
) -> None:
    suite.write("test_a.py", PASSING)
    other = tmp_path / "other"
    other.mkdir()
    Suite(other).write("test_a.py", PASSING.replace("barrier", "rank and ddp.barrier"))
    session = cluster.run(suite, folder_1=other)
    assert session.alpha["test_passes"].verdict == "error", session.text
    text = flat(session.alpha["test_passes"].text)
    assert "node 1 (beta) has other test files: " in text
    assert "test_a.py has another content there than on node 0" in text
    assert (session.alpha.returncode, session.beta.returncode) == (1, 1), session.text
    assert "INTERNALERROR" not in session.text
    assert cluster.survivors_after(3) == []


def test_an_agent_with_another_secret_is_refused(cluster: Cluster, suite: Suite) -> None:
    suite.write("test_a.py", "def test_plain(): pass")
    session = cluster.run(suite, of={1: {"PYTEST_DDP_SECRET": "of somebody else"}})
    assert session.beta.returncode == 1
    assert "connection closed by the coordinator: wrong session secret" in flat(session.beta.output)
    assert session.alpha.returncode == 0, session.text
    assert cluster.survivors_after(3) == []
