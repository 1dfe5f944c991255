"""pytest's hooks, each a few lines; inside a rank the plugin steps aside.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from typing import Any

import pytest

from pytest_ddp import fixture
from pytest_ddp.controller import INVOCATION, MARK, TIMEOUT, Controller
from pytest_ddp.fixture import Ddp
from pytest_ddp.options import MARKER_HELP, Options, add_options, check_function, read_mark
from pytest_ddp.plan import WORLD_SIZE_PARAM
from pytest_ddp.rank import fixtures as rank_fixtures

_CONTROLLER = pytest.StashKey[Controller]()
_OPTIONS = pytest.StashKey[Options]()


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER_HELP)
    config.stash[_OPTIONS] = options = Options.from_config(config)
    if not config.pluginmanager.hasplugin(rank_fixtures.__name__):
        config.stash[_CONTROLLER] = controller = Controller(config, options)
        config.pluginmanager.register(Hooks(controller, options), "ddp-controller")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    mark = read_mark(metafunc.definition, metafunc.config.stash[_OPTIONS])
    if mark is not None and mark.listed:
        metafunc.fixturenames.append(WORLD_SIZE_PARAM)
        ids = [f"ws{size}" for size in mark.world_sizes]
        metafunc.parametrize(WORLD_SIZE_PARAM, mark.world_sizes, ids=ids, indirect=True)


@pytest.fixture
def ddp() -> Ddp:
    """Rank, world size and device of a ddp test, and a side channel between its ranks."""
    return fixture.current()


@pytest.fixture
def _ddp_world_size(request: pytest.FixtureRequest) -> Any:
    """Carries a list of world sizes through pytest's parametrization."""
    return request.param


class Hooks:
    """The hooks of the controller; no rank has them."""

    def __init__(self, controller: Controller, options: Options) -> None:
        self._controller = controller
        self._options = options

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        check_function(item)
        mark = read_mark(item, self._options)
        if mark is not None:
            item.stash[MARK] = mark
            self._controller.warm_up()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._controller.collected(session.items)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> bool | None:
        if MARK not in item.stash:
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in self._controller.run(item, nextitem):
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        if self._controller.exit_request is not None:
            reason, code = self._controller.exit_request
            pytest.exit(reason, code)
        return True

    @pytest.hookimpl(optionalhook=True)
    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Any) -> bool | None:
        """Take pytest-timeout's time for a ddp test as our own deadline."""
        if MARK not in item.stash:
            return None
        item.stash[TIMEOUT] = settings.timeout
        return True

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell an xdist worker with which arguments its main process was called."""
        node.workerinput[INVOCATION] = [str(a) for a in node.config.invocation_params.args]

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        interrupted = exitstatus == pytest.ExitCode.INTERRUPTED
        self._controller.finish(interrupted=interrupted)
        if self._controller.problems and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_unconfigure(self) -> None:
        self._controller.close()

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for problem in self._controller.problems:
            terminalreporter.section("ddp: error in a rank's last teardown", red=True)
            terminalreporter.line(problem)
