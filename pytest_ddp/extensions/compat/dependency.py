"""pytest-dependency: the pytest process and all ranks have the results of earlier tests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_ddp.extensions.compat.adapter import Adapter
from pytest_ddp.protocol.host_messages import Json


class Dependency(Adapter):
    """Ranks get the results of all earlier tests, so that all of them skip or none."""

    plugin = "dependency"

    def attempt_begins(self, item: pytest.Item) -> Json:
        return {
            scope: {name: status.results for name, status in manager.results.items()}
            for scope, manager in self._managers(item)
            if manager.results
        }

    def test_begins(self, item: pytest.Item, sent: Json) -> None:
        for scope, manager in self._managers(item):
            manager.results.clear()
            for name, results in sent.get(scope, {}).items():
                manager.results[name] = status = self._module(item).DependencyItemStatus()
                status.results.update(results)

    def test_finished(self, item: pytest.Item, reports: Sequence[pytest.TestReport]) -> None:
        for report in reports:
            # The plugin's own hook around the making of a report.
            hook = self._module(item).pytest_runtest_makereport(item, None)
            next(hook)
            with contextlib.suppress(StopIteration):
                hook.send(SimpleNamespace(get_result=lambda made=report: made))

    def _module(self, item: pytest.Item) -> Any:
        return item.config.pluginmanager.getplugin(self.plugin)

    def _managers(self, item: pytest.Item) -> Iterator[tuple[str, Any]]:
        kind = self._module(item).DependencyManager
        for scope in kind.ScopeCls:
            if (manager := kind.getManager(item, scope=scope)) is not None:
                yield scope, manager
