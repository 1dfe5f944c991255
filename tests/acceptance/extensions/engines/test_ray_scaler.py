"""``--ddp-machines=ray:N`` where Ray's own autoscaler has to bring the nodes first."""

from __future__ import annotations

import pytest

from tests.acceptance.extensions.engines.raynodes import ray_that_grows
from tests.acceptance.extensions.machines.cluster import Cluster
from tests.acceptance.suite import Suite

SUM = """
    import os

    import pytest
    import torch
    import torch.distributed as dist


    @pytest.mark.ddp(world_size=4)
    def test_sum(ddp):
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == 4
        assert ddp.gather(os.environ["NODE_RANK"]) == ["0", "0", "1", "1"]
"""


def test_nodes_that_an_autoscaler_brings_are_waited_for(cluster: Cluster, suite: Suite) -> None:
    """Afterwards they are there; more than it may bring are an error with the numbers."""
    pytest.importorskip("ray")
    suite.write("test_a.py", SUM)
    with ray_that_grows(cluster, most=1) as variables:
        alone = cluster.run_alone(suite, "--ddp-machines=ray", env=variables)
        grown = cluster.run_alone(suite, "--ddp-machines=ray:2", env=variables)
        too_many = cluster.run_alone(suite, "--ddp-machines=ray:3", env=variables)
    assert "NODE_RANK" in alone["test_sum"].text
    grown.assert_outcomes(passed=1)
    words = "ddp: 1 of 2 machines are in the Ray cluster; more are requested from its autoscaler"
    assert words in grown.flat
    assert too_many.returncode == pytest.ExitCode.USAGE_ERROR, too_many.tail()
    assert "3 machines wanted, 2 in the Ray cluster: no other was on its way" in too_many.flat
