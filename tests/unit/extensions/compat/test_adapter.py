"""Adapters of single plugins, asked before and after ddp tests."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from pytest_ddp.extensions.compat.adapter import Adapter
from pytest_ddp.protocol.host_messages import Json


class Talks(Adapter):
    plugin = "talks"

    def test_ended(self, config: pytest.Config) -> Json:
        return {"said": 1}

    def findings(self, item: pytest.Item, by_rank: Mapping[int, Json]) -> str:
        return f"heard {dict(by_rank)}"


class Breaks(Talks):
    plugin = "breaks"

    def test_ended(self, config: pytest.Config) -> Json:
        raise AttributeError("renamed")


@pytest.fixture
def item(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> pytest.Item:
    known = {"talks", "breaks"}
    monkeypatch.setattr(request.config.pluginmanager, "hasplugin", known.__contains__)
    return request.node  # type: ignore[no-any-return]


def test_one_that_breaks_is_warned_of_and_left_alone(
    item: pytest.Item, monkeypatch: pytest.MonkeyPatch
) -> None:
    warned: list[str] = []

    def take(warning: Warning, stacklevel: int) -> None:
        warned.append(str(warning))

    monkeypatch.setattr(item.config, "issue_config_time_warning", take)
    talks, breaks = Talks(), Breaks()
    for _ in range(2):
        assert talks.pytest_ddp_test_ended(item) == {"talks": {"said": 1}}
        assert breaks.pytest_ddp_test_ended(item) == {}
    (text,) = warned
    assert text.startswith("the plugin breaks ")
    assert text.endswith("AttributeError: renamed")


def test_a_plugin_that_is_gone_is_left_alone(
    pytestconfig: pytest.Config, item: pytest.Item
) -> None:
    talks = Talks()
    talks.plugin = "gone"
    assert talks.pytest_ddp_test_ended(item) == {}


def test_only_ranks_that_sent_something_are_heard(item: pytest.Item) -> None:
    sent = {0: {"talks": {"said": 1}}, 1: {}}
    assert Talks().pytest_ddp_findings(item, sent) == "heard {0: {'said': 1}}"
    assert Talks().pytest_ddp_findings(item, {0: {}, 1: {}}) is None
