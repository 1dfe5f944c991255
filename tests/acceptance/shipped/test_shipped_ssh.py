"""By ssh: a folder that is missing on the other machine is no error."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.acceptance.engines.sshd import problem, sshd_up
from tests.acceptance.machines.cluster import Cluster, hiding
from tests.acceptance.shipped.project import ARGUMENTS, variables, write
from tests.acceptance.shipped.verdicts import ShippedVerdicts
from tests.acceptance.suite import Finished, Suite


@pytest.fixture(scope="module")
def session(cluster: Cluster, new_suite: Callable[[], Suite]) -> Iterator[Finished]:
    if why := problem():
        pytest.skip(why)
    suite = write(new_suite())
    with sshd_up(cluster, hiding(suite.directory)) as way:
        env = variables(suite) | way
        yield cluster.run_alone(suite, "--ddp-machines=ssh:beta", *ARGUMENTS, env=env)


class TestVerdicts(ShippedVerdicts):
    """Those of ranks on two machines."""
