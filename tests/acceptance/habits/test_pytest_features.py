"""What users know of pytest works inside ranks: built-in fixtures, hooks, plugins, layouts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.acceptance.suite import LOADFILE, UNDER_XDIST, Finished, Suite

CONFTEST = """
    import os

    import pytest

    def pytest_addoption(parser):
        parser.addoption("--flavour", default="plain")
        parser.addini("ration", "how much", default="none")

    def pytest_configure(config):
        config.flavour_seen = config.getoption("flavour")

    def pytest_generate_tests(metafunc):
        if "generated" in metafunc.fixturenames:
            metafunc.parametrize("generated", ["a", "b"])

    def pytest_collection_modifyitems(items):
        items.sort(key=lambda item: item.get_closest_marker("early") is None)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(item, call):
        report = yield
        setattr(item, f"report_{report.when}", report)
        return report

    @pytest.fixture
    def from_conftest(ddp):
        return f"conftest of rank {ddp.rank}"

    @pytest.fixture(autouse=True)
    def always(request):
        request.node.always = os.environ.get("RANK")

    @pytest.fixture(params=["x", "y"])
    def with_params(request):
        return request.param

    @pytest.fixture
    def doubled(request):
        return 2 * request.param

    @pytest.fixture
    def sees_report(request):
        yield
        assert request.node.report_call.passed
"""

FEATURES = """
    import logging
    import os
    import sys
    import warnings
    from pathlib import Path

    import pytest
    import torch
    import torch.distributed as dist

    pytestmark = pytest.mark.ddp(world_size=2)

    def test_conftest_fixture(ddp, from_conftest):
        assert from_conftest == f"conftest of rank {dist.get_rank()}"

    def test_autouse(ddp, request):
        assert request.node.always == str(ddp.rank)

    def test_request(request):
        assert request.node.name == "test_request"
        assert request.getfixturevalue("from_conftest").startswith("conftest of rank")
        assert request.config.flavour_seen == request.config.getoption("flavour")
        assert request.module is sys.modules[__name__]

    @pytest.mark.parametrize("a", [1, 2])
    @pytest.mark.parametrize("b", ["u", pytest.param("v", id="last")])
    def test_parametrize(a, b):
        assert (a, b) in [(1, "u"), (2, "u"), (1, "v"), (2, "v")]

    @pytest.mark.parametrize("doubled", [3], indirect=True)
    def test_indirect(doubled):
        assert doubled == 6

    def test_generated(generated):
        assert generated in "ab"

    def test_with_params(with_params):
        assert with_params in "xy"

    def test_sees_report(sees_report):
        pass

    @pytest.mark.early
    def test_moved_to_the_front():
        pass

    def test_monkeypatch(monkeypatch, ddp):
        monkeypatch.setenv("PATCHED", str(ddp.rank))
        monkeypatch.setattr(os, "sep", "!")
        monkeypatch.syspath_prepend("/no/such/place")
        assert os.environ["PATCHED"] == str(ddp.rank)

    def test_monkeypatch_undone():
        assert "PATCHED" not in os.environ
        assert os.sep == "/"
        assert "/no/such/place" not in sys.path

    def test_capsys(capsys, ddp):
        print(f"out {ddp.rank}")
        print(f"err {ddp.rank}", file=sys.stderr)
        assert capsys.readouterr() == (f"out {ddp.rank}\\n", f"err {ddp.rank}\\n")
        with capsys.disabled():
            print(end="")

    def test_capfd(capfd, ddp):
        os.write(1, b"to one")
        os.system("echo from a child")
        assert capfd.readouterr().out == "to onefrom a child\\n"

    def test_capfdbinary(capfdbinary):
        os.write(2, b"\\xff\\xfe")
        assert capfdbinary.readouterr().err == b"\\xff\\xfe"

    def test_caplog(caplog, ddp):
        with caplog.at_level(logging.INFO, logger="mine"):
            logging.getLogger("mine").info("message of %d", ddp.rank)
        assert caplog.messages == [f"message of {ddp.rank}"]

    def test_recwarn(recwarn):
        warnings.warn("careful")
        assert str(recwarn.pop(UserWarning).message) == "careful"

    def test_warns_and_raises():
        with pytest.warns(DeprecationWarning, match="old"):
            warnings.warn("old", DeprecationWarning)
        with pytest.raises(ValueError, match="bad") as caught:
            raise ValueError("bad")
        assert caught.value.args == ("bad",)

    def test_approx():
        assert torch.tensor(0.1).item() == pytest.approx(0.1)

    def test_tmp_path_is_shared(ddp, tmp_path):
        assert set(ddp.gather(str(tmp_path))) == {str(tmp_path)}
        assert list(tmp_path.iterdir()) == []
        ddp.barrier()
        (tmp_path / str(ddp.rank)).write_text("x")
        ddp.barrier()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]

    def test_tmp_path_is_new(tmp_path):
        assert list(tmp_path.iterdir()) == []

    @pytest.fixture
    def written_in_setup(ddp, tmp_path):
        if ddp.rank == 0:
            (tmp_path / "made").touch()
        ddp.barrier()
        return tmp_path / "made"

    def test_tmp_path_in_a_fixture(written_in_setup, tmp_path):
        assert written_in_setup.parent == tmp_path
        assert written_in_setup.exists()

    @pytest.fixture(scope="session")
    def own_directory(tmp_path_factory):
        return tmp_path_factory.mktemp("own")

    @pytest.mark.parametrize("name", ["tmp_path", "tmpdir"])
    def test_tmp_path_by_name(ddp, request, name):
        directory = Path(request.getfixturevalue(name))
        assert set(ddp.gather(str(directory))) == {str(directory)}
        (directory / str(ddp.rank)).write_text("x")
        dist.barrier()
        assert sorted(path.name for path in directory.iterdir()) == ["0", "1"]

    def test_tmp_path_on_one_rank(ddp, request):
        if ddp.rank == 1:
            assert list(request.getfixturevalue("tmp_path").iterdir()) == []

    @pytest.fixture
    def indirectly(request):
        return request.getfixturevalue(request.param)

    @pytest.mark.parametrize("indirectly", ["tmp_path"], indirect=True)
    def test_tmp_path_indirect(ddp, indirectly):
        assert set(ddp.gather(str(indirectly))) == {str(indirectly)}

    def test_tmpdir(tmpdir, tmp_path):
        assert str(tmpdir) == str(tmp_path)

    def test_tmp_path_factory(ddp, own_directory, tmp_path_factory):
        again = tmp_path_factory.mktemp("own")
        paths = ddp.gather(str(own_directory)) + ddp.gather(str(again))
        assert len(set(paths)) == 4
        assert own_directory.is_dir()

    def test_subtests(subtests, ddp):
        for number in range(3):
            with subtests.test(number=number):
                assert number < 3

    def test_failing_subtest(subtests, ddp):
        for number in range(3):
            with subtests.test(number=number):
                assert (number, ddp.rank) != (1, 1), "this subtest"

    class TestClass:
        log = []

        @classmethod
        def setup_class(cls):
            cls.log.append("class up")

        def setup_method(self):
            self.log.append("up")

        def teardown_method(self):
            self.log.append("down")

        def test_one(self, ddp):
            assert self.log == ["class up", "up"]

        def test_two(self):
            assert self.log == ["class up", "up", "down", "up"]

    def setup_function(function):
        function.prepared = True

    def test_setup_function():
        assert test_setup_function.prepared
"""

SIBLINGS = """
    import helper
    import pytest
    from helper import half

    import measures

    @pytest.mark.ddp(world_size=2)
    def test_siblings(ddp):
        assert half(ddp.gather(ddp.rank)[1]) == 0.5
        assert measures.__file__.endswith("src/measures/__init__.py")
        assert helper.__name__ == "helper"
"""

RELATIVE = """
    import pytest

    from . import sibling

    @pytest.mark.ddp(world_size=2)
    def test_relative():
        assert sibling.NAME == __name__.rpartition(".")[0] + ".sibling"
"""

PLUGIN = """
    import pytest

    @pytest.fixture
    def from_plugin(request):
        return request.config.getini("ration"), request.config.getoption("flavour")
"""

USES_PLUGIN = """
    import pytest

    @pytest.mark.ddp(world_size=2)
    def test_plugin_and_options(from_plugin):
        assert from_plugin == ("double", "sweet")
"""

PASSING = [
    "test_conftest_fixture", "test_autouse", "test_request", "test_parametrize[u-1]",
    "test_parametrize[last-2]", "test_indirect[3]", "test_generated[a]", "test_generated[b]",
    "test_with_params[x]", "test_with_params[y]", "test_sees_report", "test_moved_to_the_front",
    "test_monkeypatch", "test_monkeypatch_undone", "test_capsys", "test_capfd",
    "test_capfdbinary", "test_caplog", "test_recwarn", "test_warns_and_raises", "test_approx",
    "test_tmp_path_is_shared", "test_tmp_path_is_new", "test_tmp_path_in_a_fixture",
    "test_tmp_path_by_name[tmp_path]", "test_tmp_path_by_name[tmpdir]", "test_tmpdir",
    "test_tmp_path_on_one_rank", "test_tmp_path_indirect[tmp_path]",
    "test_tmp_path_factory", "test_subtests", "TestClass::test_one", "TestClass::test_two",
    "test_setup_function", "test_siblings", "test_relative", "test_plugin_and_options",
]  # fmt: skip
FAILING = {"test_failing_subtest": "this subtest"}

INI = """
    [pytest]
    pythonpath = src .
    asyncio_default_fixture_loop_scope = function
    markers = early: runs first
"""


def write(suite: Suite) -> Suite:
    suite.write("pytest.ini", INI)
    suite.write("conftest.py", CONFTEST)
    suite.write("my_plugin.py", PLUGIN)
    suite.write("helper.py", "def half(number): return number / 2\n")
    suite.write("src/measures/__init__.py", "")
    suite.write("tests/test_features.py", FEATURES)
    suite.write("tests/test_siblings.py", SIBLINGS)
    suite.write("tests/test_plugin.py", USES_PLUGIN)
    suite.write("tests/package/__init__.py", "")
    suite.write("tests/package/sibling.py", "NAME = __name__\n")
    suite.write("tests/package/test_relative.py", RELATIVE)
    return suite


@pytest.fixture(scope="module", params=["prepend", "append", "importlib"])
def run(request: pytest.FixtureRequest, new_suite: Callable[[], Suite]) -> Finished:
    """All features, under each import mode."""
    suite = write(new_suite())
    return suite.run(
        *("-p", "my_plugin", "-o", "ration=double", "--flavour=sweet"),
        f"--import-mode={request.param}",
        f"--basetemp={suite.directory}/temporary",
        *LOADFILE,
    )


@pytest.mark.parametrize("name", PASSING)
def test_passes(run: Finished, name: str) -> None:
    assert run[name].verdict == "passed", run[name].text


@pytest.mark.parametrize("name", FAILING)
def test_fails(run: Finished, name: str) -> None:
    result = run[name]
    assert result.verdict == "failed+failed", result.text  # the subtest, and its test
    assert FAILING[name] in result.text
    assert "rank 1" in result.text


def test_nothing_else_was_reported(run: Finished) -> None:
    expected = len(PASSING) + len(FAILING)
    others = {"test_parametrize[u-2]", "test_parametrize[last-1]"}
    assert len(run.results) == expected + len(others), sorted(run.results)
    assert run.returncode == pytest.ExitCode.TESTS_FAILED


@pytest.mark.skipif(UNDER_XDIST, reason="xdist orders by worker")
def test_conftest_reorders(run: Finished) -> None:
    assert next(iter(run.results)).endswith("test_moved_to_the_front")


def test_tmp_path_is_made_once(run: Finished) -> None:
    """One directory per test in pytest's own place, not one per rank."""
    made = [
        path for path in run.directory.rglob("test_tmp_path_is_shared*") if not path.is_symlink()
    ]
    assert len(made) == 1, made
    assert sorted(path.name for path in made[0].iterdir()) == ["0", "1"]
