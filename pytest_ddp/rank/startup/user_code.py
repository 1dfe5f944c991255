"""The user's plugins and conftest files: withheld from the host, loaded in each rank.

pytest loads them while it parses its arguments, long before a host could fork. So the host's pytest
records the calls that would load them, and a rank, whose environment is set, makes them: the same
calls, in the same order, on the same plugin manager.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pytest_ddp.rank.startup.ownership import CodeOwnership, top_of
from pytest_ddp.system.stdlib import os


class UserCode:
    """The user's code that pytest would have imported before a session begins."""

    def __init__(self, config: pytest.Config, args: list[str]) -> None:
        """Withhold the user's code from a config that has not been parsed yet.

        Args:
            config: a new config.
            args: its arguments; pytest adds those of the ini file to this list.
        """
        self._config = config
        self._args = args
        self._is_own = CodeOwnership().is_own
        self._manager: Any = config.pluginmanager
        self._parser: Any = config._parser
        self._plugins: list[str] = []
        self._conftests: Callable[[], None] = lambda: None
        self._entry_points = list(self._own_entry_points())
        for name in self._entry_points:
            self._manager.set_blocked(name)
        self._import_plugin = self._manager.import_plugin
        self._set_initial_conftests = self._manager._set_initial_conftests
        self._install()

    def _install(self) -> None:
        self._is_installed = True
        vars(self._manager)["import_plugin"] = self._import_installed
        vars(self._manager)["_set_initial_conftests"] = self._postpone_conftests
        # Options of the user's conftest files are unknown until these are loaded.
        vars(self._parser)["parse"] = self._parser.parse_known_args

    def _uninstall(self) -> None:
        self._is_installed = False
        del self._manager.import_plugin, self._manager._set_initial_conftests, self._parser.parse

    # ------------------------------------------------------------------ postponed

    def _import_installed(self, name: str, consider_entry_points: bool = False) -> None:
        if name in self._entry_points or self._is_own(top_of(name)):
            self._plugins.append(name)
        else:
            self._import_plugin(name, consider_entry_points=consider_entry_points)

    def _postpone_conftests(self, *args: Any, **kwargs: Any) -> None:
        self._conftests = lambda: self._set_initial_conftests(*args, **kwargs)

    def _own_entry_points(self) -> Iterator[str]:
        for distribution in importlib.metadata.distributions():
            for entry in distribution.entry_points:
                if entry.group == "pytest11" and self._is_own(top_of(entry.module)):
                    yield entry.name

    # ------------------------------------------------------------------ loaded in the rank

    def load(self, session: pytest.Session) -> None:
        """Load the withheld code, and call the hooks that it has missed.

        Raises:
            Exception: whatever the user's code raises, as pytest wraps it.
        """
        if not self._is_installed:
            return  # the host has loaded it
        manager, option = self._manager, self._config.option
        known, before = manager.get_plugins(), set(vars(option))
        self._uninstall()
        # Once it has configured any plugin, pytest configures a new one as soon as it is
        # registered. These plugins must find their options parsed, so they are configured below.
        manager.hook.pytest_configure._call_history.clear()
        self._load_plugins()
        early = {"early_config": self._config, "args": self._args, "parser": self._parser}
        manager.subset_hook_caller("pytest_load_initial_conftests", known)(**early)
        self._load_conftests(session)
        if manager.get_plugins() != known:
            parsed = self._parser.parse(self._args)
            # Not those that the option object has by now: before pytest 9 it lacks each option
            # that has no default, until it is parsed.
            for name in set(vars(parsed)) - before:
                setattr(option, name, getattr(parsed, name))
        manager.subset_hook_caller("pytest_cmdline_main", known)(config=self._config)
        configure = manager.subset_hook_caller("pytest_configure", known)
        configure.call_historic(kwargs={"config": self._config})
        manager.subset_hook_caller("pytest_sessionstart", known)(session=session)

    def _load_plugins(self) -> None:
        known_args: Any = self._config.known_args_namespace
        options: list[str] = known_args.plugins
        blocked = {name.removeprefix("no:") for name in options if name.startswith("no:")}
        names = self._entry_points
        wanted = [name for name in names if not {name, name.removeprefix("pytest_")} & blocked]
        for name in wanted:
            self._manager.unblock(name)
        for name in self._plugins:
            self._import_plugin(name, consider_entry_points=True)
        variable = os.environ.get("PYTEST_DISABLE_PLUGIN_AUTOLOAD")
        if not (variable or known_args.disable_plugin_autoload):
            for name in wanted:
                self._manager.load_setuptools_entrypoints("pytest11", name=name)

    def _load_conftests(self, session: pytest.Session) -> None:
        # A configured manager treats each conftest file as a late one, which may do less.
        self._manager._configured = False
        try:
            self._conftests()
        finally:
            self._manager._configured = True
        # pytest 9.1 and later: fixtures of conftest files outside of all collected folders.
        fixtures: Any = session._fixturemanager
        if hasattr(fixtures, "_flush_pending_conftests_to_session"):
            fixtures._flush_pending_conftests_to_session(session)
