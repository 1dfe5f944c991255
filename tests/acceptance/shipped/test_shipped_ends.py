"""Coverage, deaths and refusals where files are sent: each has a clear text, and leaves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.acceptance.machines.cluster import Cluster, Session, wait_for
from tests.acceptance.machines.test_coverage import TESTS, WORK, left, lines_missed
from tests.acceptance.machines.test_faults import DEATHS, OF_DEATHS
from tests.acceptance.suite import Suite, flat

SHIP = "--ddp-ship"


def copies(cluster: Cluster) -> list[Path]:
    """Folders of agents on node 1."""
    return [*(cluster.folder / "beta").glob("pddp-*")]


def test_coverage_is_of_node_0_s_files(cluster: Cluster, suite: Suite) -> None:
    suite.write("work.py", WORK)
    suite.write("test_work.py", TESTS)
    report = suite.directory / "cov.json"
    # A path, which is translated, and not only a name.
    asked = f"--cov={suite.directory}", f"--cov-report=json:{report}"
    session = cluster.run(suite, SHIP, *asked, hidden_1=True)
    session.alpha.assert_outcomes(passed=3)
    assert (session.alpha.returncode, session.beta.returncode) == (0, 0), session.text
    assert lines_missed(suite, report) == ['return "nowhere"']
    assert left(suite.directory) == []
    assert copies(cluster) == []


@pytest.fixture(scope="module")
def deaths(cluster: Cluster, new_suite: Callable[[], Suite]) -> Session:
    suite = new_suite()
    suite.write("test_deaths.py", DEATHS)
    return cluster.run(suite, SHIP, hidden_1=True)


def test_verdicts_of_deaths(deaths: Session) -> None:
    """A new host finds the copy; a lost machine is lost."""
    assert deaths.verdicts == OF_DEATHS, deaths.text


def test_nothing_is_left_of_a_killed_agent(cluster: Cluster, deaths: Session) -> None:
    assert deaths.alpha
    assert cluster.survivors_after(10) == []
    assert copies(cluster) == []


LONG = """
    import os
    import pathlib
    import time

    import pytest


    @pytest.mark.ddp(world_size=2)
    def test_long(ddp):
        pathlib.Path(os.environ["BEGUN"], f"begun-{ddp.rank}").touch()
        time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_on_the_machine_after_pytest(
    cluster: Cluster, suite: Suite, number: signal.Signals
) -> None:
    suite.write("test_a.py", LONG)
    begun = {"BEGUN": str(cluster.folder)}
    alpha, beta = cluster.start(suite, SHIP, hidden_1=True, env=begun)
    wait_for(cluster.folder / "begun-1")
    (cluster.folder / "begun-1").unlink()
    assert copies(cluster)
    os.kill(alpha.pid, number)
    alpha.finish(60)
    beta.finish(60)
    assert cluster.survivors_after(15) == []
    assert copies(cluster) == []


PASSING = """
    import pytest


    @pytest.mark.ddp(world_size=2)
    def test_passes(ddp):
        ddp.barrier()
"""


def test_many_files_and_a_large_one_lose_no_machine(cluster: Cluster, suite: Suite) -> None:
    suite.write("test_a.py", PASSING)
    for folder in range(20):
        (suite.directory / f"data{folder}").mkdir()
        for number in range(400):
            (suite.directory / f"data{folder}" / str(number)).write_bytes(os.urandom(64))
    (suite.directory / "large").write_bytes(os.urandom(40 << 20))
    session = cluster.run(suite, SHIP, hidden_1=True)
    session.alpha.assert_outcomes(passed=1)


def test_a_folder_below_the_rootdir(cluster: Cluster, suite: Suite) -> None:
    suite.write("test_a.py", PASSING)
    suite.write("inner/deep/test_b.py", PASSING)
    inner = Suite.__new__(Suite)
    inner.fresh = False
    inner.directory = suite.directory / "inner" / "deep"
    session = cluster.run(inner, SHIP, "test_b.py", "../../test_a.py")
    session.alpha.assert_outcomes(passed=2)


REFUSALS = {
    "too large": (
        ["--ddp-ship-limit=1"],
        "4 files in {root} have 2.0 MiB, and 1 MiB is the limit; the largest: large (2.0 MiB).",
    ),
    "an ini file that lies elsewhere": (
        ["-c../elsewhere.ini", "--rootdir=."],
        "the ini file is {above}/elsewhere.ini, which is outside of the rootdir {root}",
    ),
    "a folder outside": (
        ["--rootdir=inner", "inner"],
        "pytest was called in {root}, which is outside of the rootdir {root}/inner",
    ),
}


@pytest.mark.parametrize("which", REFUSALS)
def test_what_cannot_be_sent_is_told_before_any_test(
    cluster: Cluster, suite: Suite, which: str
) -> None:
    arguments, text = REFUSALS[which]
    suite.write("test_a.py", PASSING)
    suite.write("inner/test_b.py", PASSING)
    (suite.directory / "large").write_bytes(bytes(2 << 20))
    (suite.directory.parent / "elsewhere.ini").write_text("[pytest]\n")
    session = cluster.run(suite, SHIP, *arguments)
    assert session.alpha.returncode == pytest.ExitCode.USAGE_ERROR, session.text
    root, above = suite.directory, suite.directory.parent
    assert text.format(root=root, above=above) in session.alpha.flat
    assert session.alpha.results == {}
    assert session.beta.returncode == 1


def test_a_full_disk_is_told_with_the_way_out(cluster: Cluster, suite: Suite) -> None:
    suite.write("test_a.py", PASSING)
    (suite.directory / "large").write_bytes(os.urandom(3 << 20))
    tempdir = cluster.environment(1)["TMPDIR"]
    small = f"mount -t tmpfs -o size=1m none {tempdir} && "
    session = cluster.run(suite, SHIP, before_1=small)
    text = flat(session.alpha["test_passes"].text)
    assert "node 1 (beta) cannot keep the files of --ddp-ship: [Errno 28] No space left" in text
    assert "TMPDIR there names another place for them" in text
    assert copies(cluster) == []


def outside(suite: Suite) -> tuple[str, ...]:
    other = suite.directory.parent / "other"
    other.mkdir()
    (other / "test_o.py").write_text((suite.directory / "test_a.py").read_text())
    return ("../other/test_o.py",)


def ignored(suite: Suite) -> tuple[str, ...]:
    suite.write(".gitignore", "test_i.py\n")
    suite.write("test_i.py", PASSING)
    subprocess.run(["git", "init", "-q"], cwd=suite.directory, check=True)
    return ("test_i.py",)


def changed(suite: Suite) -> tuple[str, ...]:
    suite.write(
        "conftest.py",
        """
        import pathlib


        def pytest_collection_modifyitems():
            with open(pathlib.Path(__file__).parent / "test_a.py", "a") as file:
                file.write("# one line more")
    """,
    )
    return ("test_a.py",)


@pytest.mark.parametrize(
    ("prepare", "text"),
    [
        (outside, "/other/test_o.py is outside of the rootdir, of which alone --ddp-ship sends"),
        (ignored, "/test_i.py was not sent by --ddp-ship: git ignores it, or it was written"),
        (changed, "/test_a.py has another content there than on node 0: it was changed there"),
    ],
)
def test_test_files_that_did_not_come_are_named(
    cluster: Cluster, suite: Suite, prepare: Callable[[Suite], tuple[str, ...]], text: str
) -> None:
    suite.write("test_a.py", PASSING)
    # The other node would look for a rootdir that it has not got.
    rootdir = {0: {"PYTEST_ADDOPTS": f"--rootdir={suite.directory}"}}
    session = cluster.run(suite, SHIP, *prepare(suite), hidden_1=True, of=rootdir)
    (result,) = session.alpha.results.values()
    assert result.verdict == "error", session.text
    assert f"node 1 (beta) has other tests: {suite.directory.parent}" in flat(result.text)
    assert text in flat(result.text)


def test_it_takes_machines_unless_an_ini_file_says_so(suite: Suite) -> None:
    suite.write("test_a.py", PASSING)
    finished = suite.run(SHIP, extra=())
    assert finished.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--ddp-ship: it sends files to the machines of --ddp-machines" in finished.flat
    suite.write("pytest.ini", "[pytest]\nddp_ship = true\n")
    suite.run(extra=()).assert_outcomes(passed=1)
