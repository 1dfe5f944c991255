"""``--ddp-report``: adds the option, and notes on each report where its test ran.

Imported by every pytest run.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pytest_ddp.extending import on_rank
from pytest_ddp.extensions.summary.options import RAN_ON, REPORT
from pytest_ddp.settings.options import add_options


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser, (REPORT,))


def pytest_configure(config: pytest.Config) -> None:
    path = REPORT.read(config, config.option)
    if path is None or on_rank(config):
        return
    config.pluginmanager.register(_Noting(), "ddp-report-notes")
    if not hasattr(config, "workerinput") and not config.option.collectonly:
        from pytest_ddp.extensions.summary.session_report import SessionReport  # noqa: PLC0415

        config.pluginmanager.register(SessionReport(config, path), "ddp-report")


class _Noting:
    """A plugin in each process that runs ddp tests, xdist workers among them."""

    def pytest_ddp_test_finished(
        self, item: pytest.Item, reports: Sequence[pytest.TestReport]
    ) -> None:
        from pytest_ddp.settings.plan import PLAN  # noqa: PLC0415 - few need it

        plan = item.stash.get(PLAN, None)
        for report in reports:
            vars(report)[RAN_ON] = [0, ""] if plan is None else [plan.world_size, plan.backend]
