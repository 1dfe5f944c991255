"""What single plugins need to know of ddp tests, one file for each.

Most plugins need nothing of the kind: see :mod:`pytest_ddp.rank.birth.guests`. A file here is for
one whose session, in the pytest process, has to learn what a test did to it in its ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

import pytest

from pytest_ddp.neighbours.syrupy import Syrupy
from pytest_ddp.wire.protocol import Json


class Neighbour(Protocol):
    """A plugin, of which both sides of a ddp test ask something."""

    plugin: str
    """The name that pytest knows it by."""

    def tell(self, config: pytest.Config) -> Json:
        """In a rank, after a test: what the pytest process has to know, JSON-able."""

    def hear(self, item: pytest.Item, told: Mapping[int, Json]) -> str:
        """In the pytest process: take it, by rank; what the ranks disagree on, or nothing."""


_ALL: tuple[Neighbour, ...] = (Syrupy(),)


def _present(config: pytest.Config) -> Iterator[Neighbour]:
    return (one for one in _ALL if config.pluginmanager.hasplugin(one.plugin))


def tell(config: pytest.Config) -> Json:
    """In a rank: the words of all, by plugin."""
    return {one.plugin: words for one in _present(config) if (words := one.tell(config))}


def hear(item: pytest.Item, told: Mapping[int, Json]) -> str:
    """In the pytest process: pass them on; what the ranks disagree on, or nothing."""
    problems = []
    for one in _present(item.config):
        by_rank = {rank: by_plugin.get(one.plugin) for rank, by_plugin in told.items()}
        words = {rank: said for rank, said in by_rank.items() if said is not None}
        problems.append(one.hear(item, words) if words else "")
    return "\n".join(filter(None, problems))
