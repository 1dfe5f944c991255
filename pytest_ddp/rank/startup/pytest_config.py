"""pytest inside a host: configured as the controller's is, and without output."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from _pytest.config import get_config

from pytest_ddp.protocol.host_messages import Session
from pytest_ddp.rank.startup.collection import Collection
from pytest_ddp.rank.startup.plugin_filter import PluginFilter
from pytest_ddp.rank.startup.user_code import UserCode
from pytest_ddp.system.stdlib import os

_NEUTRAL: dict[str, Any] = {
    # Selection, order and counts of tests are up to the controller. -k, -m and --deselect stay as
    # they are, since conftest files read them: deselected items are found all the same.
    "lf": False,
    "failedfirst": False,
    "newfirst": False,
    "stepwise": False,
    "stepwise_skip": False,
    "cacheclear": False,
    "maxfail": 0,
    # Reports.
    "durations": None,
    "xmlpath": None,
    "pastebin": None,
    "log_file": os.devnull,
    "clean_alluredir": False,
    # Starting processes, and reading from the terminal.
    "numprocesses": None,
    "dist": "no",
    "tx": [],
    "looponfail": False,
    "usepdb": False,
    "trace": False,
}

_UNWELCOME = ("terminal",)  # progress is shown once, by the controller


class _NoCoverage:
    """Keeps pytest-cov from measuring the host, and from erasing existing data."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_load_initial_conftests(self, early_config: pytest.Config) -> Iterator[None]:
        if hasattr(early_config.known_args_namespace, "cov_source"):
            early_config.known_args_namespace.cov_source = []
        return (yield)


class Debug(NamedTuple):
    """The debugger's options; ranks do not use pytest's own implementation of them."""

    post_mortem: bool
    """``--pdb``"""
    trace: bool
    """``--trace``"""
    rank: int | None
    """The only rank that stops at breakpoints; None for all."""


DEBUG = pytest.StashKey[Debug]()
JUNIT_FAMILY = pytest.StashKey[str | None]()
"""The junit family of the file that the pytest process writes."""


def configure(session: Session, collection: Collection) -> tuple[pytest.Config, UserCode]:
    """A config like the controller's, from the same arguments, without its reports.

    Returns:
        the config, and the user's code that :meth:`UserCode.load` will load.

    Raises:
        pytest.UsageError: the arguments cannot be parsed here.
    """
    args = list(session.args)
    plugins = [*session.plugins, "pytest_ddp.rank.hooks.fixtures"]
    config = get_config(args, [*plugins, collection])
    own = UserCode(config, args)
    config.pluginmanager.register(collection)
    config.pluginmanager.register(_NoCoverage())
    for name in plugins:
        config.pluginmanager.consider_pluginarg(name)
    config = config.hook.pytest_cmdline_parse(pluginmanager=config.pluginmanager, args=args)
    config.stash[DEBUG] = Debug(
        post_mortem=config.getoption("usepdb", False),
        trace=config.getoption("trace", False),
        rank=session.debug_rank,
    )
    config.stash[JUNIT_FAMILY] = session.junit_family
    for name, value in _NEUTRAL.items():
        if hasattr(config.option, name):
            setattr(config.option, name, value)
    if config.getoption("setupplan", False) or config.getoption("setuponly", False):
        # pytest's own plugin sets these in pytest_cmdline_main, which hosts and ranks do not call.
        config.option.setuponly = config.option.setupshow = True
    for name in _UNWELCOME:
        config.pluginmanager.unregister(name=name)
    config.option.basetemp = os.path.join(session.basetemp, f"ddp-host-{os.getpid()}")
    # junitxml, html and others take a config with it for that of a process that does not report.
    worker: Any = config
    worker.workerinput = dict(session.worker_input)
    worker.workeroutput = {}
    config.pluginmanager.register(PluginFilter(config, session.options), PluginFilter.NAME)
    return config, own
