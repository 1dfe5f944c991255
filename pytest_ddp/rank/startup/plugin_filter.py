"""Installed plugins in host and ranks: hooks that are withheld, and plugins that cannot begin.

Hooks about a whole session belong to the pytest process: plugins write their files and clean up
there. A rank's session is a part of that session, and its end is not the end that plugins wait
for. A rank's reports are parts of a test's reports, so their hooks are withheld as well.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Generator, Iterator
from typing import Any

import _pytest.runner
import pytest

from pytest_ddp.protocol.host_messages import Json
from pytest_ddp.rank.startup.ownership import CodeOwnership, top_of
from pytest_ddp.system.stdlib import os

WITHHELD = (
    "pytest_sessionfinish",
    "pytest_terminal_summary",
    "pytest_unconfigure",
    "pytest_runtest_logstart",
    "pytest_runtest_logreport",
    "pytest_runtest_logfinish",
    "pytest_collectreport",
    "pytest_report_teststatus",
)
"""Hooks of installed plugins that host and ranks do not call: ends of sessions, and reports."""
_EDITORS = frozenset({"teamcity", "vscode_pytest"})
"""Plugins of PyCharm and VS Code: they report to the editor, and a rank has only a part to report.
VS Code's is in the editor's own folder, so that it seems to be the user's own code."""
_CHOOSERS = frozenset({"pytest_split"})
"""Plugins that choose among the collected tests and print their choice: in a rank they would choose
among the tests of one file, and print once for each rank."""
_NOT_HERE = _EDITORS | _CHOOSERS
_BEGINS = ("pytest_configure", "pytest_sessionstart")
_NO_GUESTS = frozenset({"_pytest", "pytest_ddp"})


class PluginFilter:
    """A pytest plugin that checks every other plugin when it is registered."""

    NAME = "ddp-plugin-filter"

    def __init__(self, config: pytest.Config, options: Json) -> None:
        """
        Args:
            config: that of the host or rank, with ``workerinput`` as in an xdist worker.
            options: values that plugins have set in the pytest process.
        """
        self._config: Any = config
        self._options = options
        self._is_own = CodeOwnership().is_own
        self.problems: list[str] = []
        """Plugins that were left out, with reasons."""
        self.left_out: dict[str, str] = {}
        """The reasons in short, by the name of the plugin."""

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
        """Call a plugin's first hook as in an xdist worker; if that fails, as without xdist.

        Some plugins pass values to their workers only if pytest-xdist runs, and do not check in
        the worker whether they did.
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
        """Begin a hook wrapper, whose code before the ``yield`` is its beginning."""
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
        worker_input = vars(self._config).pop("workerinput")
        try:
            begin(*args)
        except Exception:
            return False
        finally:
            self._config.workerinput = worker_input
        return True

    def _leave_out(self, plugin: object, hook: str, problem: Exception) -> None:
        manager = self._config.pluginmanager
        name = manager.get_name(plugin)
        manager.unregister(plugin)
        self.left_out[str(name)] = f"its {hook} fails there"
        self.problems.append(
            f"the plugin {name} is left out of the ranks of ddp tests, since its {hook} fails "
            f"there: {type(problem).__name__}: {problem}. Tests that need it there will fail; "
            f"-p no:{name} silences this."
        )


def run_without_drivers(*, item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Run pytest's protocol on an item without plugins that have a protocol of their own."""
    name = "pytest_runtest_protocol"
    impls = getattr(item.ihook, name).get_hookimpls()
    drivers = [impl.plugin for impl in impls if not (impl.wrapper or impl.hookwrapper)]
    others = [plugin for plugin in drivers if plugin is not _pytest.runner]
    if getattr(item, "_instance", None) is not None:
        # An earlier attempt has used this object of the test's class.
        function: Any = item
        del function._instance
        function._obj = None
    hook = item.config.pluginmanager.subset_hook_caller(name, others)
    hook(item=item, nextitem=nextitem)
