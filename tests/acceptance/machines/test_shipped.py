"""``--ddp-ship``: a second machine that has nothing of the suite gets its files."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.acceptance.machines.cluster import Cluster, Session
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
"""
HELPER = """
    def fail():
        raise RuntimeError("of the helper")
"""
EXAMPLES = """
    import glob
    import os
    import pathlib
    import socket
    import time

    import helper
    import packed
    import pytest
    import torch
    import torch.distributed as dist

    pytestmark = pytest.mark.ddp(world_size=2, timeout=60)
    HERE = pathlib.Path(__file__).parent


    def test_files_lie_elsewhere(ddp):
        places = ddp.gather((socket.gethostname(), __file__, os.getcwd()))
        assert [place[0] for place in places] == ["alpha", "beta"]
        assert places[0][1].endswith("/tests/test_examples.py")
        assert places[1][1].startswith(os.environ["EXPECTED_BELOW"])
        assert all(os.path.dirname(os.path.dirname(file)) == cwd for _, file, cwd in places)


    def test_introspection(ddp):
        left, right = {"rank": ddp.rank}, {"rank": 0}
        assert left == right


    def test_conftest_and_options(ddp, mine):
        assert mine == "yes"


    def test_data_beside_the_test(ddp):
        assert (HERE / "data.txt").read_text() == "beside the test"
        assert os.access(HERE / "run.sh", os.X_OK)
        assert not os.access(HERE / "data.txt", os.X_OK)
        assert (HERE / "link.txt").is_symlink()
        assert (HERE / "link.txt").read_text() == "beside the test"


    def test_package(ddp):
        assert packed.DATA == "in the package"


    def test_ignored_is_not_there(ddp):
        assert (HERE / "ignored.txt").exists() == (ddp.rank == 0)


    @pytest.mark.parametrize("file", sorted(glob.glob(f"{HERE}/*.txt"))[:1])
    def test_paths_as_parameters(ddp, file):
        assert os.path.dirname(file) == str(HERE)


    @pytest.mark.ddp(env={"DATA": str(HERE / "data.txt")})
    def test_paths_in_a_mark(ddp):
        assert os.environ["DATA"] == str(HERE / "data.txt")
        assert pathlib.Path(os.environ["OF_CALL"]).is_dir()


    def test_tmp_path(ddp, tmp_path):
        (tmp_path / "x").write_text("x")


    def test_helper_fails(ddp):
        if ddp.rank == 1:
            helper.fail()


    def test_missing_file(ddp):
        if ddp.rank == 1:
            (HERE / "none.txt").read_text()


    def test_deadlock(ddp):
        if ddp.rank == 1:
            dist.barrier()


    def test_collectives_are_alike(ddp):
        for _ in range(3):
            dist.all_reduce(torch.ones(1))


    def test_mismatch(ddp):
        if ddp.rank:
            dist.all_reduce(torch.ones(1))
        else:
            dist.all_reduce(torch.ones(1))
        dist.barrier()


    def test_crash(ddp):
        if ddp.rank == 1:
            os.abort()
        dist.barrier()


    @pytest.mark.ddp(timeout=2)
    def test_timeout(ddp):
        if ddp.rank == 1:
            time.sleep(60)


    def test_skip(ddp):
        pytest.skip("on all")


    def test_warns(ddp):
        import warnings

        if ddp.rank == 1:
            warnings.warn("from there")
"""

@pytest.fixture(scope="module")
def session(cluster: Cluster, new_suite: Callable[[], Suite]) -> Session:
    suite = new_suite()
    suite.write("pytest.ini", "[pytest]\npythonpath = src tests\n")
    suite.write("tests/conftest.py", CONFTEST)
    suite.write("tests/helper.py", HELPER)
    suite.write("tests/data.txt", "beside the test")
    suite.write("tests/run.sh", "").chmod(0o755)
    suite.write("tests/ignored.txt", "")
    (suite.directory / "tests" / "link.txt").symlink_to(suite.directory / "tests" / "data.txt")
    suite.write(".gitignore", "ignored.txt\n__pycache__\n")
    suite.write("src/packed/__init__.py", PACKAGE)
    suite.write("src/packed/data.txt", "in the package")
    suite.write("tests/test_examples.py", EXAMPLES)
    import subprocess
    subprocess.run(["git", "init", "-q"], cwd=suite.directory, check=True)
    env = {"OF_CALL": str(suite.directory / "tests"), "EXPECTED_BELOW": str(cluster.folder / "beta")}
    return cluster.run(suite, "--ddp-ship", torchrun=True, hidden_1=True, env=env)


def test_it(session):
    print(session.text)
    assert 0
