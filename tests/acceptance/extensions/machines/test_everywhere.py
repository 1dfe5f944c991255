"""``--ddp-everywhere=N`` over two machines: suites for torchrun on several nodes, unchanged."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.acceptance.extensions.adopt.everywhere_examples import (
    AT_IMPORT,
    AT_NEED,
    BY_FIXTURE,
    IN_A_GROUP,
    PLACE,
)
from tests.acceptance.extensions.machines.cluster import Cluster, Session
from tests.acceptance.suite import Suite

PLACES = """
    import os
    import socket

    import pytest
    import torch.distributed as dist

    HERE = socket.gethostname()
    RANK = int(os.environ["RANK"])

    def test_place():
        assert os.environ["LOCAL_RANK"] == "0"
        assert os.environ["GROUP_RANK"] == str(RANK)
        assert HERE == ("alpha", "beta")[RANK]

    @pytest.mark.ddp(nodes=1)
    def test_with_a_mark_of_its_own(ddp):
        assert ddp.gather(HERE) == ["alpha", "alpha"]
"""


@pytest.fixture(scope="module")
def needed(cluster: Cluster, new_suite: Callable[[], Suite]) -> Session:
    suite = new_suite()
    suite.write("place.py", PLACE)
    suite.write("test_at_need.py", AT_NEED)
    suite.write("test_by_fixture.py", BY_FIXTURE.format(mark=""))
    suite.write("test_places.py", PLACES)
    arguments = "--ddp-everywhere=2", "-W", "error::pytest_ddp.DdpWarning"
    return cluster.run(suite, *arguments, torchrun=True)


def test_a_suite_for_torchrun_passes_as_it_is(needed: Session) -> None:
    needed.alpha.assert_outcomes(passed=12, skipped=1)
    assert needed.beta.returncode == 0, needed.text


@pytest.fixture(scope="module")
def in_a_group(cluster: Cluster, new_suite: Callable[[], Suite]) -> Session:
    suite = new_suite()
    suite.write("conftest.py", AT_IMPORT)
    suite.write("test_in_a_group.py", IN_A_GROUP)
    return cluster.run(suite, "--ddp-everywhere=3")


def test_a_group_that_the_conftest_makes_at_its_import(in_a_group: Session) -> None:
    """Ranks serve a store from their start on, and new ones meet by another."""
    in_a_group.alpha.assert_outcomes(passed=3, failed=2)
    failed = in_a_group.alpha["test_fails_on_one"]
    assert failed.phase("call").message == "rank 2: assert 2 != 2"
    assert "rank 1 exited with code 3" in in_a_group.alpha["test_dies"].text


def test_nothing_survives(cluster: Cluster, in_a_group: Session) -> None:
    assert in_a_group.beta.returncode == 1, in_a_group.text
    assert not cluster.survivors_after(2)
