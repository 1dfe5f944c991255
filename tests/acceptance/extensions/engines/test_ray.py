"""``--ddp-machines=ray``: real raylets on two machines; the verdicts are those of one machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.acceptance.extensions.engines.raynodes import ray_up
from tests.acceptance.extensions.engines.verdicts import Verdicts, examples
from tests.acceptance.extensions.machines.cluster import Cluster
from tests.acceptance.extensions.machines.test_verdicts import VERDICTS
from tests.acceptance.suite import Finished, Suite, flat

RAY = "--ddp-machines=ray"


@pytest.fixture(scope="module")
def variables(cluster: Cluster) -> Iterator[dict[str, str]]:
    """Variables of users of a Ray cluster of both machines."""
    pytest.importorskip("ray")
    with ray_up(cluster) as variables:
        yield variables


PLACES = """
    import os

    import pytest


    @pytest.mark.ddp(world_size=2)
    def test_environment(ddp):
        assert ddp.gather(os.environ["MINE"]) == ["of the call"] * 2
        assert not [name for name in os.environ if name.startswith("RAY_") and ddp.rank]
        with open("/proc/self/environ") as file:
            assert "PYTEST_DDP_SECRET" not in file.read()


    @pytest.mark.ddp(world_size=2)
    def test_interpreters_are_not_ray_s(ddp):
        import sys

        assert "ray" not in sys.modules
"""
OF_PLACES = ("test_environment", "test_interpreters_are_not_ray_s")


@pytest.fixture(scope="module")
def session(
    cluster: Cluster, variables: dict[str, str], new_suite: Callable[[], Suite]
) -> Finished:
    suite = examples(new_suite())
    suite.write("test_places.py", PLACES)
    return cluster.run_alone(suite, f"{RAY}:2", env=variables | {"MINE": "of the call"})


class TestVerdicts(Verdicts):
    """Verdicts of ranks on two machines."""

    def test_every_test_has_a_verdict(self, session: Finished) -> None:
        assert len(session.results) == len(VERDICTS) + len(OF_PLACES), session.tail()

    @pytest.mark.parametrize("name", OF_PLACES)
    def test_ranks_find_the_call_s_environment_and_nothing_of_ray_s(
        self, session: Finished, name: str
    ) -> None:
        assert session[name].verdict == "passed", session[name].text


EASY = "import pytest\n@pytest.mark.ddp(world_size=2)\ndef test_a(ddp): ..."


def test_more_machines_than_nodes_are_an_error_with_the_numbers(
    cluster: Cluster, variables: dict[str, str], suite: Suite
) -> None:
    suite.write("test_a.py", EASY)
    finished = cluster.run_alone(suite, "--ddp-machines=ray:3", env=variables)
    assert finished.returncode == pytest.ExitCode.USAGE_ERROR, finished.tail()
    assert "3 machines wanted, 2 in the Ray cluster: no other was on its way" in finished.flat
    assert "--ddp-machines=ray:2" in finished.flat


def test_an_interpreter_that_is_not_there_is_an_error_with_the_way_out(
    cluster: Cluster, variables: dict[str, str], suite: Suite
) -> None:
    suite.write("test_a.py", EASY)
    other = "--ddp-machines-python=/no/python"
    finished = cluster.run_alone(suite, RAY, other, env=variables)
    assert finished.returncode == pytest.ExitCode.USAGE_ERROR, finished.tail()
    assert "node 1 (10.77.0.2) did not come: its agent ended with code 127: " in finished.flat
    assert "'/no/python'. --ddp-machines-python names the interpreter there" in finished.flat


def test_one_machine_of_a_cluster_is_that_of_pytest(
    cluster: Cluster, variables: dict[str, str], suite: Suite
) -> None:
    suite.write("test_a.py", EASY)
    finished = cluster.run_alone(suite, "--ddp-machines=ray:1", env=variables)
    finished.assert_outcomes(passed=1)
    assert finished.returncode == 0


def test_no_cluster_is_an_error_with_the_way_to_one(suite: Suite) -> None:
    pytest.importorskip("ray")
    suite.write("test_a.py", "def test_a(): ...")
    finished = suite.run(RAY, env={"RAY_ADDRESS": "127.0.0.1:9"}, extra=())
    assert finished.returncode == pytest.ExitCode.USAGE_ERROR, finished.tail()
    said = "no Ray cluster is up here: no answer at RAY_ADDRESS=127.0.0.1:9"
    assert said in finished.flat
    assert "ray start --head" in finished.flat


DEATHS = """
    import os
    import signal
    import socket
    import time

    import pytest
    import torch.distributed as dist


    def parent_of(pid):
        return int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])


    @pytest.mark.ddp(world_size=4, timeout=60)
    def test_lost(ddp):
        if ddp.rank == 3:
            time.sleep(1)  # machines report where their ranks are five times a second
            agent = parent_of(os.getppid())
            worker = parent_of(agent)
            os.kill(worker if os.environ["KILLED"] == "worker" else parent_of(worker), 9)
            signal.pause()
        dist.barrier()


    @pytest.mark.ddp(world_size=4)
    def test_after(ddp): ...


    @pytest.mark.ddp(world_size=2, nodes=1)
    def test_on_what_is_left(ddp):
        dist.barrier()
        assert ddp.gather(socket.gethostname()) == ["alpha", "alpha"]
"""


@pytest.mark.parametrize("killed", ["worker", "raylet"])
def test_an_actor_or_a_node_that_is_lost_fails_its_test(
    cluster: Cluster, variables: dict[str, str], suite: Suite, killed: str
) -> None:
    """The node's own death comes last: nobody brings it back."""
    suite.write("test_a.py", DEATHS)
    finished = cluster.run_alone(suite, RAY, env=variables | {"KILLED": killed})
    verdicts = [result.verdict for result in finished.results.values()]
    assert verdicts == ["failed", "error", "passed"], finished.tail()
    text = flat(finished["test_lost"].text)
    assert "went with its machine: node 1 (beta) is lost: connection" in text
    assert "cannot run: node 1 (beta) is lost" in flat(finished["test_after"].text)
    assert finished.returncode == 1
