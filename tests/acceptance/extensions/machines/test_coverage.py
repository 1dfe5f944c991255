"""``--cov`` over machines: what ran on each of them, whether or not they share a file system."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.extensions.machines.cluster import Cluster
from tests.acceptance.suite import Suite

WORK = """
    import socket


    def where():
        if socket.gethostname() == "alpha":
            place = "here"
        else:
            place = "there"
        return place


    def killed(rank):
        if rank == 3:
            return "last"
        return "first"


    def never():
        return "nowhere"
"""
TESTS = """
    import os
    import signal

    import pytest
    import work

    pytestmark = pytest.mark.ddp(world_size=4)


    def test_where(ddp):
        assert work.where() in ("here", "there")


    def test_killed(ddp):
        work.killed(ddp.rank)


    @pytest.mark.ddp(world_size=2, nodes=1)
    def test_here_alone(ddp):
        work.where()
"""


def lines_missed(suite: Suite, report: Path) -> list[str]:
    """What no rank has run, as source."""
    source = (suite.directory / "work.py").read_text().splitlines()
    found = json.loads(report.read_text())["files"]["work.py"]["missing_lines"]
    return [source[line - 1].strip() for line in found]


def left(directory: Path) -> list[str]:
    """Data files beside the one of the session."""
    return [path.name for path in directory.iterdir() if path.name.startswith(".coverage.")]


@pytest.fixture(params=["a shared file system", "file systems of their own"])
def folder_1(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    """What node 1 has in the place of node 0's folder."""
    if request.param == "a shared file system":
        return None
    other = tmp_path / "other"
    other.mkdir()
    suite = Suite(other)
    suite.write("work.py", WORK)
    suite.write("test_work.py", TESTS)
    return other


@pytest.fixture
def work(suite: Suite) -> Suite:
    suite.write("work.py", WORK)
    suite.write("test_work.py", TESTS)
    return suite


def test_lines_that_ran_on_either_machine_are_covered(
    cluster: Cluster, work: Suite, folder_1: Path | None
) -> None:
    report = work.directory / "cov.json"
    session = cluster.run(work, "--cov=work", f"--cov-report=json:{report}", folder_1=folder_1)
    session.alpha.assert_outcomes(passed=3)
    assert (session.alpha.returncode, session.beta.returncode) == (0, 0), session.text
    assert lines_missed(work, report) == ['return "nowhere"']
    for directory in filter(None, (work.directory, folder_1)):
        assert left(directory) == []
    assert cluster.survivors_after(3) == []


FAILS = """
    import os
    import signal

    import pytest
    import work


    @pytest.mark.ddp(world_size=4)
    def test_killed_there(ddp):
        work.where()
        work.killed(ddp.rank)
        ddp.barrier()
        if ddp.rank == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        ddp.barrier()


    @pytest.mark.ddp(world_size=4)
    def test_after(ddp):
        work.killed(ddp.rank)
"""


def test_a_session_that_fails_is_covered_and_ends_all_nodes_with_1(
    cluster: Cluster, work: Suite
) -> None:
    work.write("test_work.py", FAILS)
    report = work.directory / "cov.json"
    session = cluster.run(work, "--cov=work", f"--cov-report=json:{report}")
    session.alpha.assert_outcomes(passed=1, failed=1)
    assert (session.alpha.returncode, session.beta.returncode) == (1, 1), session.text
    # Rank 2 was stopped after the first phase that it came through, and rank 3 has a successor.
    assert lines_missed(work, report)[-1] == 'return "nowhere"'
    assert 'return "last"' not in lines_missed(work, report)
    assert left(work.directory) == []
    assert cluster.survivors_after(3) == []


def test_parallel_files_of_coverage_run_are_combined_by_the_user(
    cluster: Cluster, work: Suite
) -> None:
    work.write("setup.cfg", "[coverage:run]\nparallel = true\nsource = .\n")
    session = cluster.run(work, program=("-m", "coverage", "run"))
    session.alpha.assert_outcomes(passed=3)
    for command in (["combine"], ["json", "-o", "cov.json"]):
        subprocess.run(
            [sys.executable, "-m", "coverage", *command],
            cwd=work.directory, check=True, capture_output=True,
        )  # fmt: skip
    assert lines_missed(work, work.directory / "cov.json") == ['return "nowhere"']


def test_contexts_are_those_of_one_machine(cluster: Cluster, work: Suite) -> None:
    report = work.directory / "cov.json"
    arguments = ("--cov=work", "--cov-context=test", f"--cov-report=json:{report}")
    session = cluster.run(work, *arguments)
    session.alpha.assert_outcomes(passed=3)
    assert lines_missed(work, report) == ['return "nowhere"']
    read = (
        "from coverage import CoverageData; data = CoverageData(); data.read(); "
        "print(sorted(data.measured_contexts()))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", read],
        cwd=work.directory, check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert "test_work.py::test_where|run" in ran.stdout
