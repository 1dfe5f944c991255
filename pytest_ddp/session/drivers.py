"""Lets plugins that run a test themselves, such as pytest-rerunfailures, run ddp tests as a whole.

They implement ``pytest_runtest_protocol``, call pytest's ``runtestprotocol`` and inspect the
reports. For ddp tests they do so in the pytest process, for all ranks at once: a rank that ran a
test again alone would wait for its peers in vain, or hide its failure.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import _pytest.runner
import pytest
from _pytest.outcomes import Exit

from pytest_ddp.protocol.buffered_reports import is_subtest
from pytest_ddp.session.controller import Controller
from pytest_ddp.system.stdlib import os
from pytest_ddp.verdict.notices import DdpWarning

Run: TypeAlias = Callable[[], list[pytest.TestReport]]

_IN_PROCESSES_OF_THEIR_OWN = "pytest_forked"
"""A plugin that runs each test in a process of its own, as ranks are already."""


class _Bypassed(Exit):
    """A plugin runs the phases of a test without pytest's protocol. No plugin catches an Exit."""


class _NoResult(Exit):
    """The test ended the session, so it has no result, as in plain pytest."""


class Drivers:
    """A pytest plugin, registered as soon as another plugin runs tests."""

    def __init__(self, config: pytest.Config, own: object, controller: Controller) -> None:
        """
        Args:
            config: pytest's configuration.
            own: our plugin with the hook ``pytest_runtest_protocol``, which is left out.
            controller: runs the tests.
        """
        self._config = config
        self._own = own
        self._controller = controller
        self._refused: list[object] = []
        self._item: pytest.Item | None = None
        """The test that another plugin runs now."""
        self._report: pytest.TestReport | None = None

    def drive(self, item: pytest.Item, next_item: pytest.Item | None, run: Run) -> bool:
        """Call the plugins in pytest's order, until one has run the test.

        Args:
            item: a ddp test.
            next_item: the test after it.
            run: runs it once on its ranks.

        Returns:
            whether one has.
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
        """Let pytest's own protocol return the merged reports for the phases of this test."""
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
                merged = run()
                subtests[:] = filter(is_subtest, merged)
                reports.update({str(r.when): r for r in merged if not is_subtest(r)})
                if not reports:
                    raise _NoResult
            while subtests and when == "call":
                # Also of an attempt that does not count: pytest logs them while the call runs.
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
        """The report after the plugin's own hook; those of other plugins have run in ranks."""

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
            f"the plugin {name} runs the phases of a test without pytest's runtestprotocol, so it "
            f"does not run ddp tests and has no effect on them; -p no:{name} silences this."
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
