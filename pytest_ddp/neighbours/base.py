"""What may be asked of a plugin beside whose tests ddp tests run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from pytest_ddp.wire.hosting import Json


class Neighbour:
    """Asked in the pytest process, or in a rank, in this order; by itself it wants nothing."""

    plugin: str
    """The name that pytest knows it by."""
    withheld: tuple[str, ...] = ()
    """Hooks of it that host and ranks do not call."""

    def brief(self, item: pytest.Item) -> Json:
        """In the pytest process, before each attempt: what its ranks have to know, JSON-able."""
        return {}

    def learn(self, item: pytest.Item, briefed: Json) -> None:
        """In a rank, before the test: take it."""

    def tell(self, config: pytest.Config) -> Json:
        """In a rank, after the test: what the pytest process has to know, JSON-able."""
        return {}

    def hear(self, item: pytest.Item, told: Mapping[int, Json]) -> str:
        """In the pytest process: take it, by rank; what the ranks disagree on, or nothing."""
        return ""

    def ended(self, item: pytest.Item, reports: Sequence[pytest.TestReport]) -> None:
        """In the pytest process, after a ddp test: what became of it."""
