"""Installed plugins that nobody here has met: none breaks a ddp test by being there."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from tests.acceptance.suite import INNER, UNDER_XDIST, Finished, Suite

GIVEN = """
    import random

    def pytest_addoption(parser):
        parser.addoption("--drawn", default=None)

    class Nodes:
        def pytest_configure_node(self, node):
            node.workerinput["drawn"] = node.config.option.drawn
            node.workerinput["not json"] = b"bytes"

    def pytest_configure(config):
        if hasattr(config, "workerinput"):
            config.option.drawn = config.workerinput["drawn"]
        else:
            config.option.drawn = random.Random().random()
            config.pluginmanager.register(Nodes())
"""

SETTLES = """
    import random

    def pytest_addoption(parser):
        parser.addoption("--settled", default=None)

    class Nodes:
        def pytest_configure_node(self, node):
            node.workerinput["settled"] = node.config.option.settled

    def pytest_configure(config):
        if hasattr(config, "workerinput"):
            config.option.settled = config.workerinput["settled"]
            return
        if config.option.settled is None:
            config.option.settled = random.Random().random()
        if config.getoption("numprocesses", None):
            config.pluginmanager.register(Nodes())
"""

WRITES = """
    from pathlib import Path

    def pytest_configure(config):
        config.pluginmanager.register(Report(config.rootpath / "report.txt"))

    class Report:
        def __init__(self, path):
            self.path = path

        def _write(self, hook):
            with self.path.open("a") as file:
                file.write(f"{hook}\\n")

        def pytest_sessionfinish(self):
            self._write("sessionfinish")

        def pytest_terminal_summary(self):
            self._write("terminal_summary")

        def pytest_unconfigure(self):
            self._write("unconfigure")
"""

# Fails where the process is a host, or a rank that is its own interpreter.
ELSEWHERE = """
    import sys

    def pytest_{hook}():
        if "pytest_ddp.rank.main" in " ".join(sys.orig_argv):
            raise OSError("no place for me")
"""

AROUND = """
    import sys

    import pytest

    FAILS = {fails}

    def check(moment):
        if moment == FAILS and "pytest_ddp.rank.main" in " ".join(sys.orig_argv):
            raise OSError("no place for me")

    @pytest.hookimpl({wrapper}=True)
    def pytest_sessionstart(session):
        check("before")
        result = yield
        check("after")
        return result
"""

SOURCE = """
    import pytest

    @pytest.mark.ddp(world_size=2)
    def test_is_reported(ddp, pytestconfig):
        option = pytestconfig.option
        drawn = (option.drawn, option.settled)
        assert None not in drawn
        assert ddp.gather(drawn) == [drawn, drawn]
        print("drawn", drawn)

    def test_here(pytestconfig):
        option = pytestconfig.option
        print("drawn", (option.drawn, option.settled))

    @pytest.mark.ddp(world_size=2)
    def test_fails(ddp):
        assert ddp.rank == 0
"""

CONFTEST = """
    def pytest_configure_node(node):
        node.workerinput["ours"] = 7

    def pytest_sessionfinish(session):
        here = getattr(session.config, "workerinput", {}).get("ours", "pytest")
        with (session.config.rootpath / "ours.txt").open("a") as file:
            file.write(f"{here}\\n")
"""

PLUGINS = {
    "given": GIVEN,
    "settles": SETTLES,
    "writes": WRITES,
    "no_configure": ELSEWHERE.format(hook="configure"),
    "no_start": ELSEWHERE.format(hook="sessionstart"),
    "no_start_around": AROUND.format(wrapper="wrapper", fails="'before'"),
    "no_end_around": AROUND.format(wrapper="hookwrapper", fails="'after'"),
    "around": AROUND.format(wrapper="wrapper", fails=None),
    "old_around": AROUND.format(wrapper="hookwrapper", fails=None),
}


@pytest.fixture(scope="module")
def run(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("test_suite.py", SOURCE)
    suite.write("conftest.py", CONFTEST)
    return _run(suite, PLUGINS)


def _run(suite: Suite, plugins: dict[str, str]) -> Finished:
    for name, source in plugins.items():
        suite.write(f"site-packages/{name}.py", source)
    path = os.pathsep.join((str(suite.directory / "site-packages"), str(INNER)))
    loaded = [argument for name in plugins for argument in ("-p", name)]
    return suite.run(*loaded, "-rA", env={"PYTHONPATH": path})


def test_all_tests_run(run: Finished) -> None:
    run.assert_outcomes(passed=2, failed=1)


def test_plugins_get_what_they_give_to_workers(run: Finished) -> None:
    lines = [line for line in run.stdout.splitlines() if line.startswith("drawn")]
    assert len(set(lines)) == 1, lines


LEFT_OUT = [name for name in PLUGINS if name.startswith("no_")]


@pytest.mark.parametrize("name", LEFT_OUT)
def test_one_that_cannot_begin_is_left_out_with_a_warning(run: Finished, name: str) -> None:
    shown = [text for text in run.warnings if f"the plugin {name} is left out" in text]
    assert len(shown) == 1, run.warnings
    assert "OSError: no place for me" in shown[0]


def test_nothing_else_is_warned_of(run: Finished) -> None:
    assert len(run.warnings) == len(LEFT_OUT), run.warnings


@pytest.mark.skipif(UNDER_XDIST, reason="each worker ends a session of its own")
def test_the_session_ends_in_the_pytest_process_alone(run: Finished) -> None:
    report = (run.directory / "report.txt").read_text().split()
    assert sorted(report) == ["sessionfinish", "terminal_summary", "unconfigure"]


@pytest.mark.skipif(UNDER_XDIST, reason="each worker ends a session of its own")
def test_hooks_of_the_own_conftest_are_called_in_ranks(run: Finished) -> None:
    ends = (run.directory / "ours.txt").read_text().split()
    assert sorted(ends) == ["7", "7", "pytest"]


# ---------------------------------------------------------------- entry points of the user's own

ENTRY = """
    import pytest

    @pytest.fixture
    def whose():
        return "mine"
"""
ASKS = """
    import pytest

    @pytest.mark.ddp(world_size=1)
    def test_has_it(whose):
        assert whose == "mine"

    @pytest.mark.ddp(world_size=1)
    def test_has_it_not(pytestconfig):
        registered = pytestconfig.pluginmanager.list_name_plugin()
        assert not any("mine" in name and plugin for name, plugin in registered)
"""


@pytest.mark.parametrize(
    ("arguments", "test", "env"),
    [
        (("-p", "xdist", "-p", "ddp", "-p", "mine_module"), "test_has_it", "1"),
        (("-p", "xdist", "-p", "ddp"), "test_has_it_not", "1"),
        (("-p", "no:mine"), "test_has_it_not", None),
        ((), "test_has_it", None),
    ],
)
def test_an_entry_point_is_loaded_in_ranks_as_in_the_pytest_process(
    suite: Suite, arguments: tuple[str, ...], test: str, env: str | None
) -> None:
    suite.write("test_suite.py", ASKS)
    suite.write("elsewhere/mine_module.py", ENTRY)
    suite.write("elsewhere/mine-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: mine\n")
    suite.write("elsewhere/mine-1.dist-info/entry_points.txt", "[pytest11]\nmine = mine_module\n")
    path = os.pathsep.join((str(suite.directory / "elsewhere"), str(INNER)))
    variables = {"PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": env}
    finished = suite.run(*arguments, f"test_suite.py::{test}", env=variables)
    finished.assert_outcomes(passed=1)
