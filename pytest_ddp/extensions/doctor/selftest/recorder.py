"""A pytest plugin of the self-test: records each report as the pytest process has it.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import pytest

from pytest_ddp.system.stdlib import json, os

RECORD = "DDP_BATTERY_RECORD"
"""Environment variable with the file that reports are appended to."""
PRESENCE = "DDP_BATTERY_PRESENCE"
"""Environment variable with the file for what ranks record themselves, in the ``conftest.py`` of
the suites."""


def pytest_configure(config: pytest.Config) -> None:
    # The reports of ranks and of xdist workers reach the pytest process, so it records all.
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Recorder(config), "ddp-selftest-recorder")


class _Recorder:
    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    # Last, after other plugins may have changed the report: that is what the user sees.
    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        status = self._config.hook.pytest_report_teststatus(report=report, config=self._config)
        entry = {
            "test": report.nodeid.rpartition("::")[2].partition("@")[0],
            "category": status[0],
            "text": report.longreprtext,
            "seconds": report.duration,
        }
        with open(os.environ[RECORD], "a", encoding="utf-8", errors="replace") as record:
            record.write(json.dumps(entry) + "\n")
