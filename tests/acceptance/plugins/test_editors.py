"""What editors get: each ddp test once, by the pytest process, with its merged verdict."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable

import pytest

from tests.acceptance.plugins.test_zoo import PLACE
from tests.acceptance.suite import INNER, Finished, Suite

TESTS = """
    import pytest

    pytestmark = pytest.mark.ddp(world_size=2)

    def test_passes(ddp):
        print("hello from", ddp.rank)

    def test_fails_on_one(ddp):
        assert ddp.rank == 0

    def test_skips(ddp):
        pytest.skip("no")

    class TestClass:
        @pytest.mark.parametrize("size", [1, 2])
        def test_method(self, ddp, size):
            pass
"""
ADAPTER = """
    from pathlib import Path

    FILE = Path(__file__).with_name("shown")

    def note(*words):
        with FILE.open("a") as file:
            print(*words, file=file)

    def pytest_exception_interact(node):
        note("raised", node.name)

    def pytest_runtest_logreport(report):
        if report.when == "call":
            note("shown", report.nodeid.rpartition("::")[2], report.outcome)
"""
"""Hooks of VS Code's plugin, which is in no package index: it comes with the editor, from the
editor's folder, and is named ``vscode_pytest``."""


@pytest.fixture(scope="module")
def pycharm(new_suite: Callable[[], Suite]) -> Finished:
    """A session as PyCharm's runner starts pytest, with the plugin that it ships."""
    suite = new_suite()
    suite.write("test_suite.py", TESTS)
    path = os.pathsep.join(map(str, (INNER, PLACE)))
    args = ("--teamcity", "-p", "no:randomly")
    return suite.run(*args, timeout=120, env={"PYTHONPATH": path}, extra=())


def messages(finished: Finished, kind: str) -> Counter[str]:
    found = re.findall(rf"##teamcity\[{kind} .*? name='([^']*)'\]", finished.stdout)
    return Counter(name.rpartition(".")[2] for name in found)


@pytest.mark.parametrize("kind", ["testStarted", "testFinished"])
def test_pycharm_hears_of_each_test_once(pycharm: Finished, kind: str) -> None:
    names = ("test_passes", "test_fails_on_one", "test_skips", "test_method(1)", "test_method(2)")
    assert messages(pycharm, kind) == dict.fromkeys(names, 1)


def test_pycharm_hears_verdict_and_output(pycharm: Finished) -> None:
    assert messages(pycharm, "testIgnored") == {"test_skips": 1}
    assert len(re.findall(r"##teamcity\[testFailed ", pycharm.stdout)) == 1
    assert "details='rank 1 of 2 failed in call: assert 1 == 0" in pycharm.stdout
    assert not re.search(r"out='[^']*##teamcity", pycharm.stdout)


def test_vs_code_hears_of_each_test_once(suite: Suite) -> None:
    suite.write("test_suite.py", TESTS)
    suite.write("editor/vscode_pytest.py", ADAPTER)
    path = os.pathsep.join((str(INNER), str(suite.directory / "editor")))
    suite.run("-p", "vscode_pytest", env={"PYTHONPATH": path}, extra=())
    assert sorted((suite.directory / "editor" / "shown").read_text().splitlines()) == [
        "shown test_fails_on_one failed",
        "shown test_method[1] passed",
        "shown test_method[2] passed",
        "shown test_passes passed",
        "shown test_skips skipped",
    ]
