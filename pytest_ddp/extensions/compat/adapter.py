"""Base class of adapters; the failure of an adapter must not fail tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from pytest_ddp.protocol.host_messages import Json


class Adapter:
    """A pytest plugin that adapts another one; this base class does nothing.

    The methods without a prefix are called in this order, in the pytest process or in ranks.
    """

    plugin: str
    """The name under which the other plugin is registered."""
    withheld: tuple[str, ...] = ()
    """Hooks of the other plugin that host and ranks do not call."""
    _is_broken = False

    def attempt_begins(self, item: pytest.Item) -> Json:
        """Return JSON-able data for the ranks, in the pytest process before each attempt."""
        return {}

    def test_begins(self, item: pytest.Item, sent: Json) -> None:
        """Use the data of :meth:`attempt_begins`, in a rank before the test."""

    def test_ended(self, config: pytest.Config) -> Json:
        """Return JSON-able data for the pytest process, in a rank after the test."""
        return {}

    def findings(self, item: pytest.Item, by_rank: Mapping[int, Json]) -> str:
        """Use the ranks' data, in the pytest process; return what they disagree on, or nothing."""
        return ""

    def test_finished(self, item: pytest.Item, reports: Sequence[pytest.TestReport]) -> None:
        """Use the reports of a ddp test, in the pytest process after it."""

    # ------------------------------------------------------------------ hooks

    def pytest_ddp_withheld_hooks(self, plugin_name: str) -> Sequence[str]:
        return self.withheld if plugin_name == self.plugin else ()

    def pytest_ddp_attempt_begins(self, item: pytest.Item) -> Json:
        sent = self._call(item.config, lambda: self.attempt_begins(item))
        return {self.plugin: sent} if sent else {}

    def pytest_ddp_test_begins(self, item: pytest.Item, sent: Json) -> None:
        self._call(item.config, lambda: self.test_begins(item, sent.get(self.plugin, {})))

    def pytest_ddp_test_ended(self, item: pytest.Item) -> Json:
        data = self._call(item.config, lambda: self.test_ended(item.config))
        return {self.plugin: data} if data else {}

    def pytest_ddp_findings(self, item: pytest.Item, sent: Mapping[int, Json]) -> str | None:
        by_rank = {rank: data[self.plugin] for rank, data in sent.items() if self.plugin in data}
        return self._call(item.config, lambda: self.findings(item, by_rank)) if by_rank else None

    def pytest_ddp_test_finished(
        self, item: pytest.Item, reports: Sequence[pytest.TestReport]
    ) -> None:
        self._call(item.config, lambda: self.test_finished(item, reports))

    def _call(self, config: pytest.Config, method: Callable[[], Any]) -> Any:
        """Call a method if the plugin is registered and no call has failed before."""
        if self._is_broken or not config.pluginmanager.hasplugin(self.plugin):
            return None
        try:
            return method()
        except Exception as error:
            # An adapter uses private names of the plugin, which another release may have changed.
            self._is_broken = True
            said = f"{type(error).__name__}: {error}"
            text = f"the plugin {self.plugin} gets no results of ddp tests from now on: {said}"
            config.issue_config_time_warning(pytest.PytestWarning(text), stacklevel=2)
            return None
