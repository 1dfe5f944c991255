"""Which fixtures belong to the process group that they were set up on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from pytest_ddp.rank.groups.default import DefaultGroup


class Ties:
    """A pytest plugin that notes fixtures wider than a test whose set-up used a process group.

    A DDP model or a device mesh is worth nothing without its group, and to set one up again
    takes all ranks: such fixtures go when the group goes, and they go on all ranks.
    """

    def __init__(self, group: DefaultGroup) -> None:
        self._group = group
        self._fixtures: set[pytest.FixtureDef[Any]] = set()

    def hold(self) -> bool:
        """True if such a fixture is up."""
        return bool(self._fixtures)

    @contextlib.contextmanager
    def follow(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
        """The set-up of a fixture wider than a test, in a block."""
        before = self._group.use()
        try:
            yield
        finally:
            if self._group.use().since(before):
                self._fixtures.add(fixturedef)

    def pytest_fixture_post_finalizer(self, fixturedef: pytest.FixtureDef[Any]) -> None:
        self._fixtures.discard(fixturedef)
