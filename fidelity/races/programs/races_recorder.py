"""A pytest plugin: how each item ended, for how long it ran; ends a session when its time is up."""

from __future__ import annotations

import json
import os
import time

import pytest

from pytest_ddp.extending import on_rank


class Recorder:
    """Writes a line of JSON for each item, as soon as it has ended."""

    def __init__(self, config, path):
        self._config = config
        self._path = path
        self._until = float(os.environ.get("RACES_UNTIL", "inf"))
        self._began = time.monotonic()
        self._reports = []

    def pytest_runtest_logstart(self, nodeid):
        self._began = time.monotonic()
        self._reports = []

    def pytest_runtest_logreport(self, report):
        self._reports.append(report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logfinish(self, nodeid):
        failed = [report for report in self._reports if report.failed]
        skipped = any(report.skipped for report in self._reports)
        row = {
            "nodeid": nodeid,
            "outcome": "failed" if failed else "skipped" if skipped else "passed",
            "seconds": time.monotonic() - self._began,
            "text": "\n".join(report.longreprtext for report in failed),
        }
        with open(self._path, "a") as file:
            file.write(json.dumps(row) + "\n")
        if time.time() > self._until:
            pytest.exit("the time is up", returncode=0)


def pytest_configure(config):
    if not on_rank(config):
        path = os.environ["RACES_RECORD"]
        config.pluginmanager.register(Recorder(config, path), "races_recorder_of_items")
