"""Plugins that run a test themselves, to run it again: they drive ddp tests as a whole.

pytest-rerunfailures and its kind implement ``pytest_runtest_protocol``, call pytest's
``runtestprotocol`` and look at the reports. They do so in the pytest process, on all ranks at
once: a rank that ran a test again alone would meet no peer, or hide that it has failed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import _pytest.runner
import pytest
from _pytest.outcomes import Exit

from pytest_ddp.controller.controller import Controller
from pytest_ddp.system.own import os
from pytest_ddp.verdict.messages import DdpWarning
from pytest_ddp.wire.kept import is_subtest

Run: TypeAlias = Callable[[], list[pytest.TestReport]]

_IN_PROCESSES_OF_THEIR_OWN = "pytest_forked"
"""It gives a test a process of its own, as each rank has one."""


class _Bypassed(Exit):
    """A plugin runs the phases of a test by itself. No plugin holds such an exception back."""


class _NoResult(Exit):
    """As in plain pytest, a test that ends the session has none."""


class Drivers:
    """A pytest plugin, registered once another one wants to run tests."""

    def __init__(self, config: pytest.Config, own: object, controller: Controller) -> None:
        """
        Args:
            config: of the pytest process.
            own: the plugin whose hook asks here.
            controller: runs the tests.
        """
        self._config = config
        self._own = own
        self._controller = controller
        self._refused: list[object] = []
        self._item: pytest.Item | None = None
        """The test that a plugin runs now."""
        self._report: pytest.TestReport | None = None

    def drive(self, item: pytest.Item, next_item: pytest.Item | None, run: Run) -> bool:
        """Ask them in pytest's order, until one has run the test.

        Args:
            item: a ddp test.
            next_item: the test after it.
            run: runs it once on its ranks.
        """
        arguments = {"item": item, "nextitem": next_item}
        for impl in self._impls():
            if impl.plugin in self._refused or _forks(impl):
                self._controller.orders.set_driven(item)
                continue
            taken: Any = None
            try:
                with self._driven_by(impl.plugin, item, run):
                    taken = impl.function(*(arguments[name] for name in impl.argnames))
            except _Bypassed:
                self._refuse(impl.plugin)
                self._controller.orders.set_driven(item)
            except _NoResult:
                return True
            if taken is not None:
                return True
        return False

    def _impls(self) -> Iterator[Any]:
        for impl in reversed(self._config.hook.pytest_runtest_protocol.get_hookimpls()):
            is_wrapper = impl.wrapper or impl.hookwrapper
            if not is_wrapper and impl.plugin not in (self._own, _pytest.runner):
                yield impl

    @contextlib.contextmanager
    def _driven_by(self, plugin: object, item: pytest.Item, run: Run) -> Iterator[None]:
        """Have pytest's own protocol give the reports of ranks for the phases of this test."""
        runner: Any = _pytest.runner
        original = runner.call_and_report
        reports: dict[str, pytest.TestReport] = {}
        subtests: list[pytest.TestReport] = []
        process = os.getpid()

        def call_and_report(
            of: pytest.Item, when: str, log: bool = True, **kwargs: Any
        ) -> pytest.TestReport:
            if of is not item:
                return original(of, when, log, **kwargs)  # type: ignore[no-any-return]
            assert os.getpid() == process, "a plugin runs a ddp test in a fork of pytest"
            if when == "setup":
                self._controller.orders.set_driven(item)
                told = run()
                subtests[:] = filter(is_subtest, told)
                reports.update({str(r.when): r for r in told if not is_subtest(r)})
                if not reports:
                    raise _NoResult
            while subtests and when == "call":
                # Of an attempt that does not count, too: pytest tells them while they run.
                item.ihook.pytest_runtest_logreport(report=subtests.pop(0))
            report = self._made(plugin, item, reports.pop(when))
            if log:
                item.ihook.pytest_runtest_logreport(report=report)
            return report

        if not self._config.pluginmanager.is_registered(self):
            self._config.pluginmanager.register(self, "ddp-drivers")
        runner.call_and_report = call_and_report
        self._item = item
        try:
            yield
        finally:
            self._item = None
            runner.call_and_report = original

    def _made(
        self, plugin: object, item: pytest.Item, report: pytest.TestReport
    ) -> pytest.TestReport:
        """A report as the plugin's own hook leaves it; other plugins' have been at it in ranks."""

        def phase() -> None:
            if report.failed:
                raise self._controller.raised(report)

        call = pytest.CallInfo.from_call(phase, when=report.when)
        name = "pytest_runtest_makereport"
        impls = getattr(self._config.hook, name).get_hookimpls()
        others = [impl.plugin for impl in impls if impl.plugin not in (plugin, self)]
        hook = self._config.pluginmanager.subset_hook_caller(name, others)
        self._report = report
        try:
            made: pytest.TestReport = hook(item=item, call=call)
        finally:
            self._report = None
        return made

    def _refuse(self, plugin: object) -> None:
        self._refused.append(plugin)
        name = self._config.pluginmanager.get_name(plugin)
        text = (
            f"the plugin {name} runs the phases of a test by itself, not by pytest's "
            "runtestprotocol, so it does not run ddp tests: what it does for other tests it does "
            f"not for them; -p no:{name} silences this."
        )
        self._config.issue_config_time_warning(DdpWarning(text), stacklevel=2)

    # ------------------------------------------------------------------ pytest's hooks

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        if item is self._item:
            raise _Bypassed
        return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(self) -> pytest.TestReport | None:
        return self._report


def _forks(impl: Any) -> bool:
    return getattr(impl.function, "__module__", "") == _IN_PROCESSES_OF_THEIR_OWN
