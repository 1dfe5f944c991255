"""pytest-testmon: a ddp test depends on what any of its ranks has run.

Each rank counts lines, as a worker of pytest-xdist does; they are added to what the pytest process
has counted for the same test, whose report carries them. Otherwise the report would have the lines
of one rank only, and a change of code that only another rank runs would not select the test.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_ddp.extensions.compat.adapter import Adapter
from pytest_ddp.protocol.host_messages import Json
from pytest_ddp.system.stdlib import os


class Testmon(Adapter):
    """Ranks send the lines that they have run, and the pytest process stores them."""

    plugin = "TestmonCollect"
    withheld = ("pytest_runtest_makereport",)

    def test_ended(self, config: pytest.Config) -> Json:
        collector = config.pluginmanager.getplugin(self.plugin).testmon
        if collector.cov is None:
            return {}
        # It batches several tests until there is no next test name.
        collector._next_test_name = None
        (lines,) = collector.get_batch_coverage_data().values() or ({},)
        return {file: sorted(numbers) for file, numbers in lines.items()}

    def findings(self, item: pytest.Item, by_rank: Mapping[int, Json]) -> str:
        collector = self._collector(item)
        for files in by_rank.values():
            # The coverage context is this test, as the pytest process runs its protocol, too.
            collector.cov.get_data().add_lines(
                {os.path.join(collector.rootdir, file): lines for file, lines in files.items()}
            )
        return ""

    def test_finished(self, item: pytest.Item, reports: Sequence[pytest.TestReport]) -> None:
        plugin = item.config.pluginmanager.getplugin(self.plugin)
        last = next((report for report in reports if report.when == "teardown"), None)
        # The plugin's own hook around the making of a report.
        hook = plugin.pytest_runtest_makereport(item, SimpleNamespace(when="teardown"))
        if last is not None:
            next(hook)
            made = SimpleNamespace(get_result=lambda: last, force_result=lambda _: None)
            with contextlib.suppress(StopIteration):
                hook.send(made)

    def _collector(self, item: pytest.Item) -> Any:
        return item.config.pluginmanager.getplugin(self.plugin).testmon
