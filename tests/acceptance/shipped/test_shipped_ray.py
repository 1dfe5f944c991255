"""By Ray, whose actor starts the agent in a folder of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.acceptance.engines.raynodes import ray_up
from tests.acceptance.machines.cluster import Cluster, hiding
from tests.acceptance.shipped.project import ARGUMENTS, variables, write
from tests.acceptance.shipped.verdicts import ShippedVerdicts
from tests.acceptance.suite import Finished, Suite


@pytest.fixture(scope="module")
def session(cluster: Cluster, new_suite: Callable[[], Suite]) -> Iterator[Finished]:
    pytest.importorskip("ray")
    suite = write(new_suite())
    with ray_up(cluster, before_1=hiding(suite.directory)) as way:
        env = variables(suite) | way
        yield cluster.run_alone(suite, "--ddp-machines=ray", *ARGUMENTS, env=env)


class TestVerdicts(ShippedVerdicts):
    """Those of ranks on two machines."""
