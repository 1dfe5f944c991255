"""Implements pytest's hooks, each in a few lines; inside a rank most of them are not registered.

Imported by every pytest run, also of suites without ddp tests: modules that only ddp tests need are
imported when the first one is collected.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import contextlib
import functools
import sys
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ddp import extending, hookspecs
from pytest_ddp.session.neighbours import finish_test
from pytest_ddp.settings.import_log import IMPORT_LOG, ImportLog
from pytest_ddp.settings.mark import WORLD_SIZE_PARAM, add_marker, read_mark
from pytest_ddp.settings.marked_items import MARK, check_items, read_marks
from pytest_ddp.settings.option_changes import remember_options
from pytest_ddp.settings.options import OPTIONS, Options, add_options
from pytest_ddp.settings.prescan import Prescan
from pytest_ddp.system import support

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from pathlib import Path

    from pytest_ddp.fixture import Ddp
    from pytest_ddp.session.controller import Controller
    from pytest_ddp.session.drivers import Drivers


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.add_hookspecs(hookspecs)


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    add_options(parser)
    # After add_options, so that --help lists the options of extensions after these.
    extending.register_all(pluginmanager)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    remember_options(config)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    early_config.stash[IMPORT_LOG] = ImportLog()


def pytest_configure(config: pytest.Config) -> None:
    add_marker(config)
    config.stash[OPTIONS] = options = Options.from_config(config)
    if extending.on_rank(config):
        return
    if problem := support.problem():
        from pytest_ddp.session.without_ranks import WithoutRanks  # noqa: PLC0415

        config.pluginmanager.register(WithoutRanks(options, problem, _warn), "ddp-controller")
    else:
        config.pluginmanager.register(Hooks(config, options), "ddp-controller")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    sizes = _listed_sizes(metafunc, metafunc.config.stash[OPTIONS])
    if sizes:
        metafunc.fixturenames.append(WORLD_SIZE_PARAM)
        ids = [f"ws{size}" for size in sizes]
        metafunc.parametrize(WORLD_SIZE_PARAM, sizes, ids=ids, indirect=True)


def _listed_sizes(metafunc: pytest.Metafunc, options: Options) -> Sequence[object]:
    """The world sizes of a test that runs at several; empty for others."""
    try:
        mark = read_mark(metafunc.definition, options)
    except pytest.UsageError:
        return ()  # reported with the item, as all other wrong marks
    if mark is not None:
        return mark.world_sizes if mark.listed else ()
    return metafunc.config.hook.pytest_ddp_world_sizes(metafunc=metafunc) or ()


@pytest.fixture(scope="session")
def ddp() -> Ddp:
    """Rank, world size and device of a ddp test, and a side channel between its ranks.

    Fixtures of any scope may request it: a process keeps its rank for its whole life.
    """
    from pytest_ddp import fixture  # noqa: PLC0415

    try:
        return fixture.current()
    except fixture.DdpError as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None


@pytest.fixture
def _ddp_world_size(request: pytest.FixtureRequest) -> Any:
    """Carries a list of world sizes through pytest's parametrization."""
    return request.param


class Hooks:
    """The hooks of the controller, not registered in ranks."""

    def __init__(self, config: pytest.Config, options: Options) -> None:
        self._config = config
        self._options = options
        self._prescan = Prescan(config)
        if IMPORT_LOG not in config.stash:  # loaded by a conftest
            config.stash[IMPORT_LOG] = ImportLog()
        self._import_log = config.stash[IMPORT_LOG]
        self._made_controller: Controller | None = None
        self._refusal: pytest.UsageError | None = None
        """Why an extension makes no launcher for this session."""
        self._worker_problems: list[str] = []

    @functools.cached_property
    def _drivers(self) -> Drivers:
        from pytest_ddp.session.drivers import Drivers  # noqa: PLC0415

        return Drivers(self._config, self, self._controller)

    @property
    def _problems(self) -> list[str]:
        own = self._made_controller.problems if self._made_controller is not None else []
        return [*own, *self._worker_problems]

    @property
    def _controller(self) -> Controller:
        if self._made_controller is None:
            from pytest_ddp.session.controller import Controller  # noqa: PLC0415

            self._made_controller = Controller(self._config, self._options)
        return self._made_controller

    # ------------------------------------------------------------------ collection

    @functools.cached_property
    def _keeps_launcher(self) -> bool:
        return bool(self._config.hook.pytest_ddp_keep_launcher(config=self._config))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self) -> None:
        if self._keeps_launcher:
            self._controller.warm_up()

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makemodule(self, module_path: Path, parent: pytest.Collector) -> None:
        """Start the host, which imports torch while this process imports it for the test file."""
        if self._made_controller is None and self._prescan.in_module(module_path, parent.session):
            self._warm_up()

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        self._import_log.note("")
        report = yield
        self._import_log.note(str(collector.path))
        return check_items(report, self._options, _warn)

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        if self._made_controller is None and self._prescan.in_item(item):
            self._warm_up()

    def _warm_up(self) -> None:
        try:
            self._controller.warm_up()
        except pytest.UsageError as refusal:
            # Kept until collection is over: pytest would take it for an error of this file, and
            # show it with the traceback of the hooks.
            self._refusal = refusal

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        read_marks(items, self._options)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if any(MARK in item.stash for item in session.items):
            # In an xdist worker it would be an internal error: there each ddp test fails with it.
            if self._refusal is not None and not hasattr(self._config, "workerinput"):
                raise self._refusal
            self._controller.collected(session.items)
        elif self._made_controller is not None and not self._keeps_launcher:
            self._made_controller.close()

    def pytest_report_collectionfinish(self, items: list[pytest.Item]) -> list[str]:
        """Report, before the first ddp test, problems that make all of them fail or hang."""
        if not any(MARK in item.stash for item in items):
            return []
        from pytest_ddp.system import machine  # noqa: PLC0415

        return [f"ddp: {problem}" for problem in machine.problems()]

    # ------------------------------------------------------------------ run

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> bool | None:
        if MARK not in item.stash:
            return None

        plans = [self._controller.run_plan(item)]
        reruns = plans[0] is None or plans[0].reruns

        def run() -> list[pytest.TestReport]:
            plan = plans.pop() if plans else self._controller.run_plan(item)
            return finish_test(item, nextitem, self._controller.run(item, nextitem, plan))

        if not (reruns and self._drivers.drive(item, nextitem, run)):
            item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
            for report in run():
                item.ihook.pytest_runtest_logreport(report=report)
            item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        if self._controller.exit_request is not None:
            _exit(item.session, *self._controller.exit_request)
        return True

    @pytest.hookimpl(optionalhook=True)
    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Any) -> bool | None:
        """Use pytest-timeout's timeout of a ddp test as the plugin's own deadline."""
        if MARK not in item.stash:
            return None
        self._controller.orders.set_timeout(item, settings.timeout)
        return True

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Send an xdist worker the arguments of its main process."""
        arguments = [str(a) for a in node.config.invocation_params.args]
        if not node.gateway.spec.popen or node.gateway.spec.chdir:
            # The worker's files are in another place, so the paths are translated.
            xdist = sys.modules[type(node).__module__]
            arguments = xdist.make_reltoroot(node.nodemanager.roots, arguments)
        from pytest_ddp.verdict.paint import width_of  # noqa: PLC0415

        node.workerinput |= {"ddp_invocation": arguments, "ddp_width": width_of(node.config)}

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take over the problems of an xdist worker after its last report."""
        self._worker_problems += getattr(node, "workeroutput", {}).get("ddp_problems", [])

    # ------------------------------------------------------------------ end

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        result = yield
        if self._made_controller is not None and self._made_controller.is_measured:
            # pytest-cov reports after this hook, before pytest_sessionfinish.
            code = int(session.testsfailed > 0)
            self._made_controller.finish(interrupted=False, broken_off=False, exit_code=code)
        return result

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        try:
            if self._made_controller is not None:
                interrupted = exitstatus == pytest.ExitCode.INTERRUPTED
                self._made_controller.finish(interrupted=interrupted, exit_code=int(exitstatus))
        except KeyboardInterrupt:
            # pytest does not catch it in this hook.
            session.exitstatus = pytest.ExitCode.INTERRUPTED
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput["ddp_problems"] = self._problems
        if self._problems or self._interrupted:
            self._note_outside()
        if self._problems and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        self._paint()
        if self._options.trace is not None and not hasattr(self._config, "workerinput"):
            from pytest_ddp.trace.files import write_index  # noqa: PLC0415 - few need it

            # If the folder cannot be written, each test has already warned.
            with contextlib.suppress(OSError):
                write_index(self._options.trace)

    def _note_outside(self) -> None:
        """Keep what belongs to no test, and add it to the file of ``--junitxml``."""
        from pytest_ddp.verdict.notices import PROBLEMS, note  # noqa: PLC0415

        self._config.stash[PROBLEMS] = self._problems
        for problem in self._problems:
            note(self._config, "ddp.problem", problem)
        if self._interrupted:
            note(self._config, "ddp.interrupted", self._interrupted)

    @property
    def _interrupted(self) -> str:
        """The places of the interrupted test's ranks, as text; empty if no test was interrupted."""
        if self._made_controller is None:
            return ""
        from pytest_ddp.session.supervisor import INTERRUPTED  # noqa: PLC0415

        return self._config.stash.get(INTERRUPTED, "")

    def _paint(self) -> None:
        terminal: Any = self._config.pluginmanager.getplugin("terminalreporter")
        stats = {} if terminal is None else terminal.stats
        reports = [report for name in ("failed", "error") for report in stats.get(name, ())]
        # A module that could not be collected is among the errors, and has no keywords.
        failed = [report for report in reports if isinstance(report, pytest.TestReport)]
        if any("ddp" in report.keywords for report in failed):
            from pytest_ddp.verdict.paint import paint  # noqa: PLC0415

            paint(failed)

    def pytest_unconfigure(self) -> None:
        if self._made_controller is not None:
            self._made_controller.close()

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for problem in self._problems:
            terminalreporter.section("ddp: error outside of the tests", red=True)
            terminalreporter.line(problem)
        if self._interrupted:
            terminalreporter.section("ddp: interrupted", red=True)
            terminalreporter.line(self._interrupted)


def _warn(item: pytest.Item, text: str) -> None:
    from pytest_ddp.verdict.notices import DdpWarning  # noqa: PLC0415 - few need it

    item.warn(DdpWarning(text))


def _exit(session: pytest.Session, reason: str, code: int | None) -> None:
    """End the session because a rank called ``pytest.exit``."""
    if hasattr(session.config, "workerinput"):
        # xdist would take an exception in a worker for an internal error. The return code is lost.
        session.shouldstop = f"pytest.exit in a rank: {reason}"
    else:
        pytest.exit(reason, code)
