"""The same where pytest starts the agents: by ssh, and by Ray."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.acceptance.engines import raynodes, sshd
from tests.acceptance.machines.cluster import Cluster, hiding
from tests.acceptance.shipped.project import ARGUMENTS, variables, write
from tests.acceptance.shipped.verdicts import ShippedVerdicts
from tests.acceptance.suite import Finished, Suite


@pytest.fixture(scope="module")
def by_ssh(cluster: Cluster, new_suite: Callable[[], Suite]) -> Iterator[Finished]:
    if why := sshd.problem():
        pytest.skip(why)
    suite = write(new_suite())
    with sshd.sshd_up(cluster, hiding(suite.directory)) as way:
        env = variables(suite) | way
        yield cluster.run_alone(suite, "--ddp-machines=ssh:beta", *ARGUMENTS, env=env)


class TestSsh(ShippedVerdicts):
    """A folder that is missing there is no error."""

    @pytest.fixture(scope="class")
    def session(self, by_ssh: Finished) -> Finished:
        return by_ssh


@pytest.fixture(scope="module")
def by_ray(cluster: Cluster, new_suite: Callable[[], Suite]) -> Iterator[Finished]:
    pytest.importorskip("ray")
    suite = write(new_suite())
    with raynodes.ray_up(cluster, hiding(suite.directory)) as way:
        env = variables(suite) | way
        yield cluster.run_alone(suite, "--ddp-machines=ray", *ARGUMENTS, env=env)


class TestRay(ShippedVerdicts):
    """The same of an actor's child."""

    @pytest.fixture(scope="class")
    def session(self, by_ray: Finished) -> Finished:
        return by_ray
