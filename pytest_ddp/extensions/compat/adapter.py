"""What an adapter may do, and its failures, which must not be those of tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from pytest_ddp.protocol.host_messages import Json


class Adapter:
    """A pytest plugin beside another one; by itself it does nothing.

    The methods without a prefix are called in their order here, in the pytest process or in ranks.
    """

    plugin: str
    """The name that pytest knows the other one by."""
    withheld: tuple[str, ...] = ()
    """Hooks of it that host and ranks do not call."""
    _is_broken = False

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

    # ------------------------------------------------------------------ hooks

    def pytest_ddp_withheld_hooks(self, plugin_name: str) -> Sequence[str]:
        return self.withheld if plugin_name == self.plugin else ()

    def pytest_ddp_attempt_begins(self, item: pytest.Item) -> Json:
        briefed = self._call(item.config, lambda: self.brief(item))
        return {self.plugin: briefed} if briefed else {}

    def pytest_ddp_test_begins(self, item: pytest.Item, sent: Json) -> None:
        self._call(item.config, lambda: self.learn(item, sent.get(self.plugin, {})))

    def pytest_ddp_test_ended(self, item: pytest.Item) -> Json:
        told = self._call(item.config, lambda: self.tell(item.config))
        return {self.plugin: told} if told else {}

    def pytest_ddp_findings(self, item: pytest.Item, sent: Mapping[int, Json]) -> str | None:
        told = {rank: said[self.plugin] for rank, said in sent.items() if self.plugin in said}
        return self._call(item.config, lambda: self.hear(item, told)) if told else None

    def pytest_ddp_test_finished(
        self, item: pytest.Item, reports: Sequence[pytest.TestReport]
    ) -> None:
        self._call(item.config, lambda: self.ended(item, reports))

    def _call(self, config: pytest.Config, method: Callable[[], Any]) -> Any:
        """Call it where the plugin is still there, and has the names that are known of it."""
        if self._is_broken or not config.pluginmanager.hasplugin(self.plugin):
            return None
        try:
            return method()
        except Exception as error:
            # Of private names, which another release may have changed.
            self._is_broken = True
            said = f"{type(error).__name__}: {error}"
            text = f"the plugin {self.plugin} knows nothing of ddp tests from here on: {said}"
            config.issue_config_time_warning(pytest.PytestWarning(text), stacklevel=2)
            return None
