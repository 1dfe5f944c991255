"""A pytest plugin that writes each report and warning as a line of JSON, one file per process."""

import json
import os

import pytest


class Recorder:
    def __init__(self, folder):
        self._file = os.path.join(folder, f"{os.getpid()}.jsonl")

    def _write(self, **fields):
        with open(self._file, "a") as file:
            file.write(json.dumps(fields) + "\n")

    def pytest_runtest_logreport(self, report):
        self._write(
            kind="report",
            test=report.nodeid.rpartition("::")[2],
            when=report.when,
            outcome=report.outcome,
            subtest=hasattr(report, "context"),
            text=report.longreprtext,
            output="".join(text for _, text in report.sections),
            pid=os.getpid(),
        )

    def pytest_warning_recorded(self, warning_message):
        self._write(kind="warning", text=str(warning_message.message))


@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    # Not where reports only pass through: workers of xdist, and ranks that report elsewhere.
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(os.environ["HABITS_RECORD"]))
