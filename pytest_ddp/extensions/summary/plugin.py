"""``--ddp-report``: defines the option, and notes on each report where its test ran.

Imported by every pytest run.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_ddp.extending import on_rank
from pytest_ddp.settings.options import Setting, add_options

RAN_ON = "ddp_ran_on"
"""An attribute of a ddp test's reports, which they keep on their way from an xdist worker: a list
of its world size and backend; of 0 and an empty text where it could not be planned."""


def _check_file(value: object) -> Path | None:
    if not isinstance(value, str):
        raise ValueError("it is the name of a file")
    if not value:
        return None
    path = Path(value).absolute()
    if path.is_dir():
        raise ValueError("there is a directory of this name; name a file")
    return path


REPORT = Setting(
    *("report", "FILE", "string", "", _check_file, ""),
    help="write one HTML page of the session: verdicts of ddp tests, and for each failure its "
    "text, what its code means, the picture of --ddp-trace, and a command that repeats it",
    group="results of ddp tests",
)


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
    """In each process that runs ddp tests, xdist workers among them."""

    def pytest_ddp_test_finished(
        self, item: pytest.Item, reports: Sequence[pytest.TestReport]
    ) -> None:
        from pytest_ddp.settings.plan import PLAN  # noqa: PLC0415 - few need it

        plan = item.stash.get(PLAN, None)
        for report in reports:
            vars(report)[RAN_ON] = [0, ""] if plan is None else [plan.world_size, plan.backend]
