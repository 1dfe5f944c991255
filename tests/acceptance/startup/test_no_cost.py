"""Who has no ddp test pays nothing: no torch, no process."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.acceptance.suite import UNDER_XDIST, Finished, Suite

pytestmark = pytest.mark.skipif(
    UNDER_XDIST, reason="asks the one pytest process of a run without workers"
)

CONFTEST = """
    import sys
    import threading

    import psutil
    import pytest


    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(config):
        note(config, "collected")


    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(session):
        note(session.config, "finished")
        return (yield)


    def note(config, when):
        if hasattr(config, "workerinput"):
            return  # a rank, which may import what it likes
        # After the plugin could begin, and before it has cleaned up: at the end of the
        # collection it ends a host that nobody needs.
        children = [child.cmdline() for child in psutil.Process().children(recursive=True)]
        print(f"\\n@{when} plugin", "pytest_ddp.plugin" in sys.modules)
        print(f"@{when} torch", sorted({n.partition(".")[0] for n in sys.modules} & LIBRARIES))
        print(f"@{when} children", children)
        print(f"@{when} threads", threading.active_count() - 1)


    LIBRARIES = {"torch", "numpy", "lightning", "multiprocessing"}
"""

PLAIN = """
    import pytest


    def test_plain():
        pass


    @pytest.mark.parametrize("n", range(3))
    def test_many(n, tmp_path):
        assert tmp_path.is_dir()


    class TestClass:
        def test_method(self):
            pass
"""

MARKED = """
    import pytest


    @pytest.mark.ddp(world_size=2)
    def test_marked(ddp):
        assert ddp.world_size == 2


    @pytest.mark.ddp(world_size=[1, 2])
    def test_sizes(ddp):
        pass


    @pytest.mark.ddp(world_size=2, backend="nccl")
    def test_nccl(ddp):
        pass


    def test_plain():
        pass
"""

TEXT = """
    TEXT = '''
    @pytest.mark.ddp(world_size=2)
    def test_two(ddp): ...
    '''


    def test_text():
        assert TEXT
"""

SEVERAL = """
    import sys

    import pytest


    def of_several():
        room = "pytest_ddp.extensions.machines"
        options = {room, f"{room}.plugin", f"{room}.engines", f"{room}.engines.options"}
        return [name for name in sys.modules if name.startswith(room) and name not in options]


    @pytest.mark.ddp(world_size=2)
    def test_several_in_ranks(ddp):
        assert of_several() == []


    def test_several_in_the_pytest_process():
        assert of_several() == []


    def of_worlds():
        room = "pytest_ddp.extensions.worlds"
        used = {room, f"{room}.plugin", f"{room}.ranks", f"{room}.ranks.without_worlds"}
        return [name for name in sys.modules if name.startswith(room) and name not in used]


    @pytest.mark.ddp(world_size=2)
    def test_worlds_in_ranks(ddp, pytestconfig):
        assert of_worlds() == []
        assert not pytestconfig.pluginmanager.has_plugin("ddp-worlds-arithmetic")


    def test_worlds_in_the_pytest_process():
        assert of_worlds() == []
"""

EARLY = """
    import psutil
    import pytest

    print("\\n@children", children := len(psutil.Process().children()))
    if children:
        pytest.skip("the host need not import torch", allow_module_level=True)


    @pytest.mark.ddp(world_size=1)
    def test_ranks(ddp):
        pass


    def test_ordinary():
        pass
"""


def facts(finished: Finished) -> dict[str, str]:
    """What the conftest printed, such as ``"finished torch"``: ``"[]"``."""
    lines = [line for line in finished.stdout.splitlines() if line.startswith("@")]
    return {" ".join(line[1:].split()[:2]): line.split(maxsplit=2)[2] for line in lines}


def assert_free(finished: Finished) -> None:
    assert facts(finished) == {
        f"{when} {what}": value
        for when in ("collected", "finished")
        for what, value in {
            "plugin": "True",
            "torch": "[]",
            "children": "[]",
            "threads": "0",
        }.items()
    }


@pytest.fixture
def suite(suite: Suite) -> Suite:
    suite.fresh = True  # a process that finds torch imported cannot say whether it would be
    return suite


@pytest.fixture
def watched(suite: Suite) -> Suite:
    suite.write("conftest.py", CONFTEST)
    return suite


def test_suite_without_ddp_tests(watched: Suite) -> None:
    watched.write("test_plain.py", PLAIN)
    finished = watched.run("-s")
    finished.assert_outcomes(passed=5)
    assert_free(finished)


@pytest.mark.parametrize(
    "flags", [["--collect-only"], ["--collect-only", "-q"], ["--co", "-k", "marked or sizes"]]
)
def test_collect_only(watched: Suite, flags: list[str]) -> None:
    watched.write("test_ddp.py", MARKED)
    finished = watched.run("-s", *flags)
    assert finished.returncode == pytest.ExitCode.OK
    assert "test_marked" in finished.stdout
    assert_free(finished)


@pytest.mark.parametrize("flags", [["--fixtures"], ["--markers"], ["--help"], ["--version"]])
def test_questions_about_pytest(watched: Suite, flags: list[str]) -> None:
    watched.fresh = False  # they are about the answers
    watched.write("test_ddp.py", MARKED)
    finished = watched.run(*flags)
    assert finished.returncode == pytest.ExitCode.OK
    words = {"--fixtures": "ddp", "--markers": "@pytest.mark.ddp(", "--help": "--ddp-backend"}
    assert words.get(flags[0], "pytest") in finished.output


@pytest.mark.parametrize("flags", [["-k", "plain"], ["-m", "not ddp"]])
def test_every_ddp_test_deselected(watched: Suite, flags: list[str]) -> None:
    watched.write("test_ddp.py", MARKED)
    finished = watched.run("-s", *flags)
    finished.assert_outcomes(passed=1)
    assert_free(finished)


@pytest.mark.parametrize("package", [False, True])
@pytest.mark.parametrize(
    "asked", ["tests/test_plain.py", "tests/test_ddp.py::test_plain", "tests/unit"]
)
def test_ddp_tests_beside_what_was_asked_for(watched: Suite, asked: str, package: bool) -> None:
    """pytest looks at every file of a folder, and collects only what it is asked for."""
    watched.write("tests/test_ddp.py", MARKED)
    watched.write("tests/test_plain.py", PLAIN)
    watched.write("tests/unit/test_deep.py", PLAIN)
    if package:
        watched.write("tests/__init__.py", "")
        watched.write("tests/unit/__init__.py", "")
    finished = watched.run("-s", asked)
    finished.assert_outcomes(passed=1 if "::" in asked else 5)
    assert_free(finished)


def test_ddp_tests_in_files_that_last_failed_leaves_out(watched: Suite) -> None:
    watched.write("test_a.py", "def test_fails(): assert False")
    watched.write("test_ddp.py", MARKED)
    cache = ("-p", "cacheprovider")
    watched.fresh = False  # it is the next session that could import what this one has
    watched.run(*cache, "test_a.py").assert_outcomes(failed=1)
    watched.fresh = True
    finished = watched.run("-s", *cache, "--lf")
    finished.assert_outcomes(failed=1)
    assert_free(finished)


def test_mark_in_a_text(watched: Suite) -> None:
    """The guess that starts a host was wrong; it is gone when nothing needs it."""
    watched.write("test_text.py", TEXT)
    finished = watched.run("-s")
    finished.assert_outcomes(passed=1)
    assert facts(finished)["finished torch"] == "[]"
    assert facts(finished)["finished children"] == "[]"


@pytest.mark.parametrize(
    ("flags", "early"),
    [
        ([], True),
        (["."], True),
        (["test_early.py"], True),
        (["-k", "ordinary"], False),
        (["-m", "not ddp"], False),
        (["test_early.py::test_ordinary"], False),
        (["--collect-only"], False),
    ],
)
def test_host_starts_before_its_first_file_is_imported(
    suite: Suite, flags: list[str], early: bool
) -> None:
    """Both import torch then, side by side; unless other tests may have been picked."""
    suite.write("test_early.py", EARLY)
    finished = suite.run("-s", *flags)
    code = pytest.ExitCode.NO_TESTS_COLLECTED if early else pytest.ExitCode.OK
    assert finished.returncode == code
    shown = [line for line in finished.stdout.splitlines() if line.startswith("@")]
    assert shown[0] == f"@children {int(early)}"


def test_every_ddp_test_skipped_for_lack_of_gpus(watched: Suite) -> None:
    watched.write("test_ddp.py", MARKED)
    finished = watched.run("-s", "-k", "nccl", env={"CUDA_VISIBLE_DEVICES": ""})
    finished.assert_outcomes(skipped=1)
    assert facts(finished)["finished torch"] == "[]"


@pytest.fixture(scope="module")
def whole(new_suite: Callable[[], Suite]) -> Finished:
    """A session that runs ddp tests, and takes as long as its host needs to import torch."""
    suite = new_suite()
    suite.fresh = True
    suite.write("conftest.py", CONFTEST)
    suite.write("test_ddp.py", MARKED)
    suite.write("test_several.py", SEVERAL)
    return suite.run("-s", "-k", "marked or sizes or several", timeout=30)


def test_the_pytest_process_never_imports_torch(whole: Finished) -> None:
    """The pytest process does not import torch for ddp tests either; the other tests here could
    fail."""
    whole.assert_outcomes(passed=7)
    assert "torch" not in facts(whole)["finished torch"]
    assert facts(whole)["finished children"] != "[]"


def test_one_machine_loads_nothing_of_several(whole: Finished) -> None:
    assert whole["test_several_in_ranks"].verdict == "passed"
    assert whole["test_several_in_the_pytest_process"].verdict == "passed"


def test_a_session_without_worlds_loads_nothing_of_them(whole: Finished) -> None:
    assert whole["test_worlds_in_ranks"].verdict == "passed"
    assert whole["test_worlds_in_the_pytest_process"].verdict == "passed"
