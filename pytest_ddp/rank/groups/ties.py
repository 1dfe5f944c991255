"""Which fixtures belong to the process group that they were set up on, or to all ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from pytest_ddp.rank.groups.default import DefaultGroup
from pytest_ddp.rank.groups.sidechannel import SideChannel


class Ties:
    """A pytest plugin that notes fixtures wider than a test whose set-up used a process group.

    A DDP model or a device mesh is worth nothing without its group, and to set one up again
    takes all ranks: such fixtures go when the group goes, and they go on all ranks.
    """

    def __init__(self, group: DefaultGroup, side_channel: SideChannel) -> None:
        self._group = group
        self._side_channel = side_channel
        self._fixtures: set[pytest.FixtureDef[Any]] = set()
        self._together: set[pytest.FixtureDef[Any]] = set()

    def hold(self) -> bool:
        """True if such a fixture is up."""
        return bool(self._fixtures)

    def hold_together(self) -> bool:
        """True if one is up whose set-up or teardown may want all ranks, by the ``ddp`` fixture."""
        return bool(self._together)

    @contextlib.contextmanager
    def follow(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
        """The set-up of a fixture wider than a test, in a block."""
        before, exchanges = self._group.use(), self._side_channel.exchanges
        try:
            with self._group.journal.of_wide_fixture():
                yield
        finally:
            if "ddp" in fixturedef.argnames or self._side_channel.exchanges > exchanges:
                self._together.add(fixturedef)
            if self._group.use().since(before):
                self._fixtures.add(fixturedef)

    def pytest_fixture_post_finalizer(self, fixturedef: pytest.FixtureDef[Any]) -> None:
        self._fixtures.discard(fixturedef)
        self._together.discard(fixturedef)
