"""The fixtures that depend on the process group of their set-up, or need all ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from pytest_ddp.rank.groups.default_group import DefaultGroup
from pytest_ddp.rank.groups.side_channel import SideChannel


class GroupFixtures:
    """A pytest plugin that records fixtures wider than a test whose set-up used a process group.

    A DDP model or a device mesh is useless without its group, and setting it up again takes all
    ranks: such a fixture is torn down when the group is given up, and on all ranks.
    """

    def __init__(self, group: DefaultGroup, side_channel: SideChannel) -> None:
        self._group = group
        self._side_channel = side_channel
        self._fixtures: set[pytest.FixtureDef[Any]] = set()
        self._together: set[pytest.FixtureDef[Any]] = set()

    def hold(self) -> bool:
        """True if a fixture that used a group is set up."""
        return bool(self._fixtures)

    def needs_peers(self) -> bool:
        """True if a fixture is set up whose teardown may need all ranks, through ``ddp``."""
        return bool(self._together)

    @contextlib.contextmanager
    def follow(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
        """Observe the set-up of a fixture wider than a test, which runs in the block."""
        before, exchanges = self._group.use(), self._side_channel.exchanges
        try:
            with self._group.of_wide_fixture():
                yield
        finally:
            if "ddp" in fixturedef.argnames or self._side_channel.exchanges > exchanges:
                self._together.add(fixturedef)
            if self._group.use().since(before):
                self._fixtures.add(fixturedef)

    def pytest_fixture_post_finalizer(self, fixturedef: pytest.FixtureDef[Any]) -> None:
        self._fixtures.discard(fixturedef)
        self._together.discard(fixturedef)
