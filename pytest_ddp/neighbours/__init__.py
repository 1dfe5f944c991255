"""What single plugins need to know of ddp tests, one file for each.

Most plugins need nothing of the kind: see :mod:`pytest_ddp.rank.birth.guests`. A file here is for
one whose work spans several tests, some of which run in ranks and some in the pytest process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from pytest_ddp.neighbours.allure import Allure
from pytest_ddp.neighbours.base import Neighbour
from pytest_ddp.neighbours.benchmark import Benchmark
from pytest_ddp.neighbours.dependency import Dependency
from pytest_ddp.neighbours.syrupy import Syrupy
from pytest_ddp.neighbours.testmon import Testmon
from pytest_ddp.wire.hosting import Json

_ALL: tuple[Neighbour, ...] = (Allure(), Benchmark(), Dependency(), Syrupy(), Testmon())
_LEFT_ALONE: set[str] = set()
"""Plugins that could not be asked."""


def withheld(plugin: str | None) -> tuple[str, ...]:
    """Hooks of a plugin, by the name that pytest knows it by, that ranks do not call."""
    return next((one.withheld for one in _ALL if one.plugin == plugin), ())


def brief(item: pytest.Item) -> Json:
    """In the pytest process, before an attempt: what plugins have for its ranks, by plugin."""
    return _of_each(item.config, lambda one: one.brief(item))


def learn(item: pytest.Item, briefed: Json) -> None:
    """In a rank, before a test: pass it on."""
    _of_each(item.config, lambda one: one.learn(item, briefed.get(one.plugin, {})))


def tell(config: pytest.Config) -> Json:
    """In a rank, after a test: what plugins have for the pytest process, by plugin."""
    return _of_each(config, lambda one: one.tell(config))


def hear(item: pytest.Item, told: Mapping[int, Json]) -> str:
    """In the pytest process: pass it on; what the ranks disagree on, or nothing."""

    def hear_one(one: Neighbour) -> str:
        words = {rank: said[one.plugin] for rank, said in told.items() if one.plugin in said}
        return one.hear(item, words) if words else ""

    return "\n".join(_of_each(item.config, hear_one).values())


def ended(item: pytest.Item, reports: Sequence[pytest.TestReport]) -> None:
    """In the pytest process, after a test: what became of it."""
    _of_each(item.config, lambda one: one.ended(item, reports))


def _of_each(config: pytest.Config, ask: Callable[[Neighbour], Any]) -> dict[str, Any]:
    """What each has to say that is there and has something to say, by plugin."""
    answers = {}
    for one in _ALL:
        if one.plugin in _LEFT_ALONE or not config.pluginmanager.hasplugin(one.plugin):
            continue
        try:
            if answer := ask(one):
                answers[one.plugin] = answer
        except Exception as error:
            # Of private names, which another release may have changed.
            _LEFT_ALONE.add(one.plugin)
            said = f"{type(error).__name__}: {error}"
            text = f"the plugin {one.plugin} knows nothing of ddp tests from here on: {said}"
            config.issue_config_time_warning(pytest.PytestWarning(text), stacklevel=2)
    return answers
