"""Installed plugins in host and ranks: what they may not do there, and what if they cannot work.

What is told of a whole session belongs to the pytest process: there plugins write their files and
clean up. A rank's session is a part of that one, and its end is nothing that they wait for. Nor are
its reports, which are parts of a test's.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Generator, Iterator
from typing import Any

import _pytest.runner
import pytest

from pytest_ddp.rank.birth.ownership import Ownership, top_of
from pytest_ddp.system.own import os
from pytest_ddp.wire.hosting import Json

WITHHELD = (
    *("pytest_sessionfinish", "pytest_terminal_summary", "pytest_unconfigure"),
    *("pytest_runtest_logstart", "pytest_runtest_logreport", "pytest_runtest_logfinish"),
    *("pytest_collectreport", "pytest_report_teststatus"),
)
"""Hooks of installed plugins that host and ranks do not call: ends of sessions, and reports."""
_EDITORS = frozenset({"teamcity", "vscode_pytest"})
"""PyCharm's and VS Code's: they tell the editor what happens, of which a rank knows its part alone.
VS Code's comes from the editor's own folder, and looks like the user's."""
_CHOOSERS = frozenset({"pytest_split"})
"""They choose among the tests that are collected, and say what they chose: in a rank among those of
a file, on a terminal that shows it for each rank."""
_NOT_HERE = _EDITORS | _CHOOSERS
_BEGINS = ("pytest_configure", "pytest_sessionstart")
_NO_GUESTS = frozenset({"_pytest", "pytest_ddp"})


class Guests:
    """A pytest plugin that looks at each other one when it is registered."""

    NAME = "ddp-guests"

    def __init__(self, config: pytest.Config, options: Json) -> None:
        """
        Args:
            config: of host or rank; it looks like that of an xdist worker.
            options: what plugins have settled in the pytest process.
        """
        self._config: Any = config
        self._options = options
        self._is_own = Ownership().is_own
        self.problems: list[str] = []
        """Which plugins are left out, and why."""

    def pytest_plugin_registered(self, plugin: object) -> None:
        module = getattr(plugin, "__module__", None) or getattr(plugin, "__name__", "")
        if top_of(str(module)) in _NOT_HERE:
            self._config.pluginmanager.unregister(plugin)
            return
        known = self._withheld(self._config.pluginmanager.get_name(plugin))
        for caller, impl in self._impls(plugin, (*WITHHELD, *known)):
            if caller.name in known or self._is_guest(impl):
                caller._remove_plugin(plugin)
        for caller, impl in self._impls(plugin, _BEGINS):
            if self._is_guest(impl):
                around = impl.wrapper or impl.hookwrapper
                begin = self._begin_around if around else self._begin
                impl.function = functools.partial(begin, impl, impl.function, caller.name)

    def _withheld(self, name: str | None) -> tuple[str, ...]:
        # Unknown while the core's own plugin is loaded by a conftest file, in the rank.
        hook = getattr(self._config.hook, "pytest_ddp_withheld_hooks", None)
        if hook is None or name is None:
            return ()
        return tuple(one for hooks in hook(plugin_name=name) for one in hooks)

    def _impls(self, plugin: object, hooks: tuple[str, ...]) -> Iterator[tuple[Any, Any]]:
        for name in hooks:
            caller = getattr(self._config.hook, name)
            for impl in caller.get_hookimpls():
                if impl.plugin is plugin:
                    yield caller, impl

    def _is_guest(self, impl: Any) -> bool:
        module = getattr(impl.function, "__module__", None) or type(impl.plugin).__module__
        file = getattr(sys.modules.get(module), "__file__", None) or ""
        if top_of(module) in _NO_GUESTS or os.path.basename(file) == "conftest.py":
            return False
        return not self._is_own(top_of(module))

    def _begin(self, impl: Any, begin: Callable[..., Any], hook: str, *args: Any) -> None:
        """Let a plugin begin as in an xdist worker, or if it cannot, as in a process alone.

        Some tell their workers something only where pytest-xdist runs, and in the worker do not
        look whether they did.
        """
        try:
            begin(*args)
            return
        except Exception as error:
            problem = error
        if hook != "pytest_configure" or not self._begins_alone(begin, *args):
            self._leave_out(impl.plugin, hook, problem)

    def _begin_around(
        self, impl: Any, begin: Callable[..., Any], hook: str, *args: Any
    ) -> Generator[None, Any, Any]:
        """The same for a wrapper, whose part before the others' is its beginning."""
        around = begin(*args)
        try:
            next(around)
        except Exception as problem:
            self._leave_out(impl.plugin, hook, problem)
            return (yield)
        result, raised = None, None
        try:
            result = yield
        except BaseException as error:
            raised = error
        try:
            if raised is None:
                around.send(result)
            else:
                around.throw(raised)
        except StopIteration as end:
            return end.value
        except Exception as problem:
            if problem is raised:
                raise
            self._leave_out(impl.plugin, hook, problem)
        return result

    def _begins_alone(self, begin: Callable[..., Any], *args: Any) -> bool:
        option = vars(self._config.option)
        option.update({name: self._options[name] for name in self._options.keys() & option.keys()})
        told = vars(self._config).pop("workerinput")
        try:
            begin(*args)
        except Exception:
            return False
        finally:
            self._config.workerinput = told
        return True

    def _leave_out(self, plugin: object, hook: str, problem: Exception) -> None:
        manager = self._config.pluginmanager
        name = manager.get_name(plugin)
        manager.unregister(plugin)
        self.problems.append(
            f"the plugin {name} is left out of the ranks of ddp tests, since its {hook} fails "
            f"there: {type(problem).__name__}: {problem}. Tests that need it there will fail; "
            f"-p no:{name} silences this."
        )


def run_undriven(*, item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Run pytest's protocol on an item without plugins that would do so in their own way."""
    name = "pytest_runtest_protocol"
    impls = getattr(item.ihook, name).get_hookimpls()
    drivers = [impl.plugin for impl in impls if not (impl.wrapper or impl.hookwrapper)]
    others = [plugin for plugin in drivers if plugin is not _pytest.runner]
    if getattr(item, "_instance", None) is not None:
        # The object of the class that an earlier attempt has used.
        function: Any = item
        del function._instance
        function._obj = None
    hook = item.config.pluginmanager.subset_hook_caller(name, others)
    hook(item=item, nextitem=nextitem)
