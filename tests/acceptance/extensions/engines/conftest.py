"""The machines of these tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.acceptance.extensions.machines.cluster import Cluster, problem


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two machines."""
    if why := problem():
        pytest.skip(why)
    with Cluster.up() as cluster:
        yield cluster
