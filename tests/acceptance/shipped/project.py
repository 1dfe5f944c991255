"""A project of which the other machine has nothing, and what becomes of its tests there."""

from __future__ import annotations

import subprocess

from tests.acceptance.machines.test_verdicts import EXAMPLES, PLAIN, TEXTS, VERDICTS
from tests.acceptance.suite import Suite

CONFTEST = """
    import pytest


    def pytest_addoption(parser):
        parser.addoption("--mine", default="no")


    @pytest.fixture
    def mine(request):
        return request.config.getoption("--mine")
"""
PACKAGE = """
    import pathlib

    DATA = (pathlib.Path(__file__).parent / "data.txt").read_text()
    WHAT = "as committed"
"""
HELPER = """
    def fail():
        raise RuntimeError("of the helper")
"""
FILES = """
    import glob
    import os
    import pathlib
    import socket
    import sys
    import warnings

    import helper
    import packed
    import pytest
    import torch
    import torch.distributed as dist

    pytestmark = pytest.mark.ddp(world_size=2, timeout=60)
    HERE = pathlib.Path(__file__).parent


    def test_each_machine_has_its_own_files(ddp):
        (alpha, home, at_home), (beta, file, folder) = ddp.gather(
            (socket.gethostname(), __file__, os.getcwd())
        )
        assert (alpha, beta) == ("alpha", "beta")
        assert home == os.path.join(at_home, "tests", "test_files.py")
        assert file == os.path.join(folder, "tests", "test_files.py")
        assert "pddp-" in file and "pddp-" not in home
        assert os.path.basename(folder) == os.path.basename(at_home)
        assert ddp.rank == 0 or not os.path.exists(at_home)
        assert ddp.rank == 0 or os.stat(file.partition("/shipped/")[0]).st_mode & 0o777 == 0o700


    def test_conftest_and_its_options(ddp, mine):
        assert mine == "yes"


    def test_data_beside_the_test(ddp):
        assert (HERE / "data.txt").read_text() == "beside the test"
        assert (HERE / "link.txt").is_symlink()
        assert (HERE / "link.txt").read_text() == "beside the test"
        assert os.access(HERE / "run.sh", os.X_OK)
        assert not os.stat(HERE / "data.txt").st_mode & 0o111


    def test_link_out_of_the_tree(ddp):
        assert os.path.isfile(HERE / "out")
        assert os.readlink(HERE / "out") == "/usr/bin/env"


    def test_package_with_what_is_not_committed(ddp):
        assert packed.DATA == "in the package"
        assert packed.WHAT == "as edited"


    def test_deleted_and_ignored_files_are_not_there(ddp):
        assert not (HERE / "deleted.txt").exists()
        assert (HERE / "ignored.log").exists() == (ddp.rank == 0)


    def test_caches_lie_in_the_copy(ddp):
        assert str(pathlib.Path(packed.__cached__)).startswith(str(HERE.parent))


    @pytest.mark.parametrize("file", sorted(glob.glob(f"{HERE}/d*.txt")))
    def test_paths_as_parameters(ddp, file):
        assert os.path.dirname(file) == str(HERE)


    @pytest.mark.ddp(env={"DATA": str(HERE / "data.txt")})
    def test_paths_of_variables(ddp):
        assert os.environ["DATA"] == str(HERE / "data.txt")
        assert os.environ["OF_CALL"] == str(HERE)
        assert str(HERE.parent / "src") in sys.path


    def test_written_beside_the_test(ddp):
        (HERE / f"written-{ddp.rank}").write_text("x")


    def test_collectives_of_one_line(ddp):
        for _ in range(3):
            dist.all_reduce(torch.ones(1))


    def test_introspection(ddp):
        left, right = {"rank": ddp.rank}, {"rank": 0}
        assert left == right


    def test_helper_fails(ddp):
        if ddp.rank == 1:
            helper.fail()


    def test_missing_file(ddp):
        if ddp.rank == 1:
            (HERE / "none.txt").read_text()


    @pytest.mark.parametrize("file", [f"{HERE}/none.txt"])
    def test_fails_with_a_path(ddp, file):
        assert ddp.rank == 0 or os.path.exists(file)


    def test_assert_of_paths(ddp):
        home, _ = ddp.gather(__file__)
        assert __file__ == home


    def test_stuck(ddp):
        if ddp.rank == 1:
            dist.barrier()


    def test_aborts(ddp):
        if ddp.rank == 1:
            os.abort()
        dist.barrier()


    def test_warns(ddp):
        if ddp.rank == 1:
            warnings.warn("from there")
"""
FAILURES = {
    "test_introspection": "AssertionError: assert {'rank': 1} == {'rank': 0}",
    "test_helper_fails": "tests/helper.py:3: RuntimeError",
    "test_missing_file": "tests/none.txt'",
    "test_fails_with_a_path[{tests}/none.txt]": "rank 1 of 2 failed in call: AssertionError",
    "test_assert_of_paths": "rank 1 of 2 failed in call: AssertionError",
    "test_stuck": "rank 1 waits call barrier #1 of the default group tests/test_files.py:",
    "test_aborts": "rank 1 died of SIGABRT in call, at tests/test_files.py:",
}
"""Tests that fail, with a part of their text."""
PASSING = (
    *("test_each_machine_has_its_own_files", "test_conftest_and_its_options"),
    *("test_data_beside_the_test", "test_link_out_of_the_tree"),
    *("test_package_with_what_is_not_committed", "test_deleted_and_ignored_files_are_not_there"),
    *("test_caches_lie_in_the_copy", "test_paths_as_parameters[{tests}/data.txt]"),
    *("test_paths_of_variables", "test_written_beside_the_test", "test_collectives_of_one_line"),
    "test_warns",
)
ALL = {**dict.fromkeys(PASSING, "passed"), **dict.fromkeys(FAILURES, "failed")}
ARGUMENTS = ("--ddp-ship", "--mine=yes", "tests", "test_examples.py", "test_plain.py")

__all__ = ("TEXTS", "VERDICTS")


def write(suite: Suite) -> Suite:
    """Make the project, some of it committed."""
    suite.write("pytest.ini", "[pytest]\npythonpath = src\n")
    suite.write(".gitignore", "*.log\n__pycache__\n")
    suite.write("src/packed/__init__.py", PACKAGE)
    suite.write("src/packed/data.txt", "in the package")
    tests = suite.directory / "tests"
    suite.write("tests/conftest.py", CONFTEST)
    suite.write("tests/helper.py", HELPER)
    suite.write("tests/data.txt", "beside the test")
    deleted = suite.write("tests/deleted.txt", "")
    suite.write("tests/ignored.log", "")
    suite.write("tests/run.sh", "").chmod(0o755)
    (tests / "link.txt").symlink_to(tests / "data.txt")
    (tests / "out").symlink_to("/usr/bin/env")
    git(suite, "init", "-q")
    git(suite, "add", ".")
    git(suite, "-c", "user.name=x", "-c", "user.email=x@x", "commit", "-qm", "all")
    deleted.unlink()
    suite.write("src/packed/__init__.py", PACKAGE.replace("as committed", "as edited"))
    suite.write("tests/test_files.py", FILES)
    suite.write("test_examples.py", EXAMPLES)
    suite.write("test_plain.py", PLAIN)
    return suite


def variables(suite: Suite) -> dict[str, str]:
    """Those of the call."""
    return {"OF_CALL": str(suite.directory / "tests")}


def git(suite: Suite, *arguments: str) -> None:
    """Run git in a suite's folder."""
    subprocess.run(["git", *arguments], cwd=suite.directory, check=True, capture_output=True)
