"""pytest inside a host or a spawned rank: set up as the controller's was, and quiet."""

from __future__ import annotations

import os
import uuid
from typing import Any

import pytest
from _pytest.config import _prepareconfig

from pytest_ddp.protocol import Session

_NEUTRAL: dict[str, Any] = {
    # What selects, orders or counts tests is the controller's business. -k, -m and
    # --deselect stay as they are, since conftest files look at them: deselected items
    # are still found.
    "lf": False,
    "failedfirst": False,
    "newfirst": False,
    "stepwise": False,
    "stepwise_skip": False,
    "cacheclear": False,
    "maxfail": 0,
    # What reports.
    "durations": None,
    "xmlpath": None,
    "pastebin": None,
    "log_file": os.devnull,
    # What starts processes or asks the terminal.
    "numprocesses": None,
    "dist": "no",
    "tx": [],
    "looponfail": False,
    "usepdb": False,
    "trace": False,
}

_UNWELCOME = (
    "terminal",  # progress is shown once, by the controller
    "_cov",  # pytest-cov's worker needs a controller of its own kind
)


class Items:
    """Remembers every collected item, also those that a plugin deselects afterwards."""

    def __init__(self) -> None:
        self.by_nodeid: dict[str, pytest.Item] = {}
        self.errors: list[str] = []

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Any:
        before = list(items)
        yield
        self.by_nodeid = {item.nodeid: item for item in [*before, *items]}

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.errors.append(report.longreprtext)


def configure(session: Session, plugins: list[object]) -> pytest.Config:
    """A config like the controller's, from the same arguments, that does no reporting.

    Raises:
        pytest.UsageError: the arguments do not parse here.
    """
    config = _prepareconfig(list(session.args), [*session.plugins, *plugins])
    for name, value in _NEUTRAL.items():
        if hasattr(config.option, name):
            setattr(config.option, name, value)
    for name in _UNWELCOME:
        config.pluginmanager.unregister(name=name)
    config.option.basetemp = os.path.join(session.basetemp, f"ddp-host-{os.getpid()}")
    # What junitxml, html and the like take for "not the process that reports".
    worker: Any = config
    worker.workerinput = {
        "workerid": session.worker,
        "workercount": 1,
        "testrunuid": uuid.uuid4().hex,
        "mainargv": list(session.args),
    }
    worker.workeroutput = {}
    return config
