"""``--ddp-machines=ssh:HOST``: a real sshd on the second of two machines."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.acceptance.extensions.engines.sshd import problem, sshd_up
from tests.acceptance.extensions.engines.verdicts import Verdicts, examples
from tests.acceptance.extensions.machines.cluster import Cluster
from tests.acceptance.suite import Finished, Suite, flat

SSH = "--ddp-machines=ssh:beta"
PASSING = """
    import pytest


    @pytest.mark.ddp(world_size=2)
    def test_passes(ddp):
        ddp.barrier()
"""


@pytest.fixture(scope="module")
def variables(cluster: Cluster) -> Iterator[dict[str, str]]:
    """Variables of users who reach node 1 as beta."""
    if why := problem():
        pytest.skip(why)
    with sshd_up(cluster) as variables:
        yield variables


@pytest.fixture(scope="module")
def session(
    cluster: Cluster, variables: dict[str, str], new_suite: Callable[[], Suite]
) -> Finished:
    return cluster.run_alone(examples(new_suite()), SSH, env=variables)


class TestVerdicts(Verdicts):
    """Verdicts of ranks on two machines."""


HIDDEN = """
    import os
    import pathlib

    import pytest


    @pytest.mark.ddp(world_size=2)
    def test_environment(ddp):
        assert ddp.gather(os.environ["MINE"]) == ["it's of $HOME; the call"] * 2


    @pytest.mark.ddp(world_size=2)
    def test_no_command_line_has_the_secret(ddp):
        for entry in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            try:
                assert b"of the tests" not in entry.read_bytes()
            except OSError:
                pass  # it has ended
        assert "PYTEST_DDP_SECRET" not in os.environ
"""


def test_the_environment_comes_along_and_the_secret_is_seen_nowhere(
    cluster: Cluster, variables: dict[str, str], suite: Suite
) -> None:
    suite.write("test_a.py", HIDDEN)
    own = {"MINE": "it's of $HOME; the call", "PYTEST_DDP_SECRET": "of the tests"}
    finished = cluster.run_alone(suite, SSH, env=variables | own)
    finished.assert_outcomes(passed=2)
    assert finished.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ssh:nobody"], "node 1 (nobody) did not come: its command ended with code 255: ssh: "
         "connect to host 10.77.0.1 port 22: Connection refused. `ssh -o BatchMode=yes nobody "
         "true` has to work, without a prompt"),
        (["ssh:beta,stranger"], "node 2 (stranger) did not come: its command ended with code 255: "
         "root@10.77.0.2: Permission denied"),
        (["ssh:10.99.0.1"], "no way from this machine to 10.99.0.1 (10.99.0.1): "
         "[Errno 101] Network is unreachable. Set MASTER_ADDR to"),
        (["ssh:beta", "--ddp-machines-python=/no/python"], "ended with code 127: "),
        (["ssh:beta", "--ddp-machines-python=/no/python"],
         ". --ddp-machines-python names the interpreter there"),
    ],
)  # fmt: skip
def test_a_host_that_cannot_is_one_error_at_the_start(
    cluster: Cluster, variables: dict[str, str], suite: Suite, arguments: list[str], words: str
) -> None:
    suite.write("test_a.py", PASSING)
    asked, *others = arguments
    finished = cluster.run_alone(suite, f"--ddp-machines={asked}", *others, env=variables)
    assert finished.returncode == pytest.ExitCode.USAGE_ERROR, finished.tail()
    assert "ERROR: --ddp-machines=ssh: " in finished.flat
    assert words in finished.flat
    assert finished.results == {}
    # The agent of beta may still be importing: it sees the end when it tries to connect.
    assert cluster.survivors_after(60) == []


def test_a_python_of_another_version_is_named(
    cluster: Cluster, variables: dict[str, str], suite: Suite, tmp_path: Path
) -> None:
    """Before a line of ours is read by it, which an old one could not."""
    own = ".".join(map(str, sys.version_info[:3]))
    other = tmp_path / "python"
    other.write_text(
        f"#!/bin/sh\nshift $(($# - 2))\n"
        f'exec {sys.executable} -c "import sys; sys.version_info = (3, 9, 2); $2"\n'
    )
    other.chmod(0o755)
    suite.write("test_a.py", PASSING)
    finished = cluster.run_alone(suite, SSH, f"--ddp-machines-python={other}", env=variables)
    assert finished.returncode == pytest.ExitCode.USAGE_ERROR, finished.tail()
    assert f"python is 3.9.2 there and {own} on node 0" in finished.flat


LONG = """
    import os
    import signal
    import time

    import pytest


    def parent_of(pid):
        return int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])


    @pytest.mark.ddp(world_size=2, timeout=60)
    def test_long(ddp):
        if ddp.rank:
            with open("agent", "w") as file:
                file.write(str(parent_of(os.getppid())))
            time.sleep(1)  # machines report where their ranks are five times a second
            os.rename("agent", "begun")
        time.sleep(40)
"""


def _begun(suite: Suite) -> int:
    """The agent's pid, once the test has begun."""
    file = suite.directory / "begun"
    deadline = time.monotonic() + 90
    while not file.exists():
        assert time.monotonic() < deadline, "the test did not begin"
        time.sleep(0.05)
    return int(file.read_text())


def test_a_killed_agent_is_a_lost_machine(
    cluster: Cluster, variables: dict[str, str], suite: Suite
) -> None:
    suite.write("test_a.py", LONG)
    running = cluster.start_alone(suite, SSH, env=variables)
    os.kill(_begun(suite), signal.SIGKILL)
    finished = running.finish(60)
    assert finished["test_long"].verdict == "failed", finished.tail()
    assert "node 1 (beta) is lost: connection" in flat(finished["test_long"].text)
    assert cluster.survivors_after(3) == []


def test_a_cut_network_is_a_lost_machine_and_ends_in_time(
    cluster: Cluster, variables: dict[str, str], suite: Suite
) -> None:
    """ssh itself would hold on for minutes."""
    suite.write("test_a.py", LONG)
    running = cluster.start_alone(suite, SSH, env=variables)
    _begun(suite)
    time.sleep(1)
    with cluster.cut():
        finished = running.finish(60)
    text = flat(finished["test_long"].text)
    assert "node 1 (beta) is lost: gave no sign of life for 5 s" in text
    assert not [line for line in cluster.survivors_after(15) if "ssh" not in line]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_survives_pytest(
    cluster: Cluster, variables: dict[str, str], suite: Suite, number: signal.Signals
) -> None:
    suite.write("test_a.py", LONG)
    running = cluster.start_alone(suite, SSH, env=variables)
    _begun(suite)
    os.kill(running.pid, number)
    running.finish(60)
    assert cluster.survivors_after(10) == []
