"""A pytest plugin for inner runs: writes every report as one line of JSON.

Loaded with ``-p recorder``. It reads what the user's own plugins would see, the merged
reports, instead of taking apart the terminal's text. Stands alone: it is imported by
processes that know nothing of this directory's other files.
"""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any

import pytest

VARIABLE = "DDP_ACCEPTANCE_RECORD"
_LONGEST = 100_000
"""Characters of captured output that are recorded; of more, the middle is left out."""


def pytest_configure(config: pytest.Config) -> None:
    """Record in the process that reports: not in ranks, nor in workers of pytest-xdist."""
    if VARIABLE in os.environ and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(config, Path(os.environ[VARIABLE])))


class Recorder:
    """Appends to the file at once, so that a killed run leaves what it had seen."""

    def __init__(self, config: pytest.Config, path: Path) -> None:
        self._config = config
        self._path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        status = self._config.hook.pytest_report_teststatus(report=report, config=self._config)
        crash = getattr(report.longrepr, "reprcrash", None)
        self._write(
            "report",
            nodeid=report.nodeid,
            when=report.when,
            outcome=report.outcome,
            category=status[0],
            wasxfail=getattr(report, "wasxfail", None),
            text=report.longreprtext,
            message=getattr(crash, "message", ""),
            path=str(getattr(crash, "path", "")),
            line=getattr(crash, "lineno", 0),
            sections=[(title, _cut(text)) for title, text in report.sections],
            duration=report.duration,
        )

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write("collect_error", nodeid=report.nodeid, text=report.longreprtext)

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, nodeid: str
    ) -> None:
        self._write(
            "warning",
            nodeid=nodeid,
            category=warning_message.category.__name__,
            message=str(warning_message.message),
        )

    def _write(self, kind: str, **fields: Any) -> None:
        with self._path.open("a", encoding="utf-8", errors="surrogateescape") as stream:
            stream.write(json.dumps({"kind": kind, **fields}) + "\n")


def _cut(text: str) -> str:
    if len(text) <= _LONGEST:
        return text
    half = _LONGEST // 2
    return f"{text[:half]}[{len(text) - 2 * half} characters left out]{text[-half:]}"
