"""Single plugins that are asked before and after ddp tests."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from pytest_ddp import neighbours
from pytest_ddp.neighbours.base import Neighbour
from pytest_ddp.wire.hosting import Json


class Talks(Neighbour):
    plugin = "talks"

    def tell(self, config: pytest.Config) -> Json:
        return {"said": 1}

    def hear(self, item: pytest.Item, told: Mapping[int, Json]) -> str:
        return f"heard {dict(told)}"


class Breaks(Talks):
    plugin = "breaks"

    def tell(self, config: pytest.Config) -> Json:
        raise AttributeError("renamed")


@pytest.fixture
def config(pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch) -> pytest.Config:
    known = {"talks", "breaks"}
    monkeypatch.setattr(neighbours, "_ALL", (Talks(), Breaks()))
    monkeypatch.setattr(neighbours, "_LEFT_ALONE", set())
    monkeypatch.setattr(pytestconfig.pluginmanager, "hasplugin", known.__contains__)
    return pytestconfig


def test_one_that_breaks_is_warned_of_and_left_alone(
    config: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    warned: list[str] = []

    def take(warning: Warning, stacklevel: int) -> None:
        warned.append(str(warning))

    monkeypatch.setattr(config, "issue_config_time_warning", take)
    for _ in range(2):
        assert neighbours.tell(config) == {"talks": {"said": 1}}
    (text,) = warned
    assert text.startswith("the plugin breaks ")
    assert text.endswith("AttributeError: renamed")


def test_only_who_was_told_of_hears(config: pytest.Config, request: pytest.FixtureRequest) -> None:
    told = {0: {"talks": {"said": 1}}, 1: {}}
    assert neighbours.hear(request.node, told) == "heard {0: {'said': 1}}"
    assert neighbours.hear(request.node, {0: {}, 1: {}}) == ""
