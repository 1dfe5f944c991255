"""``--cov`` and ``coverage run`` count what ranks ran, line for line, and leave nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from coverage import CoverageData

from tests.acceptance.suite import EXTRA_ARGS, Finished, Suite, flat
from tests.environment import without_outer_run

WORK = """
    import os

    if os.environ.get("RANK") == "1":
        place = "the second"
    elif os.environ.get("RANK") is None:
        place = "nowhere"
    else:
        place = "another"


    def branches(rank):
        if rank == 0:
            total = 1
        else:
            total = 2
        for _ in range(rank):
            total += 1
        return total


    def fails(rank):
        if rank == 1:
            raise ValueError("of rank 1")
        return 0


    def never(rank):
        return rank
"""
BY_HAND = """
    import contextlib
    import os
    import sys

    if len(sys.argv) > 1:
        os.environ["RANK"] = sys.argv[1]
    import work

    for rank in map(int, sys.argv[1:]):
        work.branches(rank)
        with contextlib.suppress(ValueError):
            work.fails(rank)
"""
TESTS = """
    import pytest
    import work

    pytestmark = pytest.mark.ddp(world_size=2)

    def test_branches(ddp):
        assert work.branches(ddp.rank)

    def test_fails(ddp):
        work.fails(ddp.rank)
"""
COV = ("--cov=work", "--cov-report=")
FORKED = tuple(argument for argument in EXTRA_ARGS if "spawn" not in argument)


def data_of(directory: Path) -> CoverageData:
    data = CoverageData(str(directory / ".coverage"))
    data.read()
    return data


def lines_of(directory: Path, name: str = "work.py") -> set[int]:
    """The lines of a file that were counted."""
    data = data_of(directory)
    file = next(file for file in data.measured_files() if Path(file).name == name)
    return set(data.lines(file) or ())


def texts_of(directory: Path, name: str = "work.py") -> set[str]:
    """The texts of the measured lines."""
    text = (directory / name).read_text().splitlines()
    return {text[number - 1].strip() for number in lines_of(directory, name)}


def arcs_of(directory: Path) -> set[tuple[int, int]]:
    data = data_of(directory)
    (file,) = data.measured_files()
    return set(data.arcs(file) or ())


def left_in(directory: Path) -> list[str]:
    return [file.name for file in directory.glob(".coverage*")]


def coverage(directory: Path, *arguments: str) -> str:
    # Not a warm interpreter, in which coverage.py stumbles over what torch has in sys.modules.
    command = [sys.executable, "-m", "coverage", *arguments]
    clean = {k: v for k, v in without_outer_run().items() if not k.startswith(("COV", "RANK"))}
    finished = subprocess.run(
        command,
        cwd=directory,
        env=clean,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=240,
    )
    assert finished.returncode in (0, 1), finished.stderr
    return finished.stdout.decode()


@pytest.fixture(scope="module")
def written(new_suite: Callable[[], Suite]) -> Callable[[], Suite]:
    def write() -> Suite:
        suite = new_suite()
        suite.write("work.py", WORK)
        suite.write("test_work.py", TESTS)
        return suite

    return write


@pytest.fixture(scope="module")
def by_hand(new_suite: Callable[[], Suite]) -> Path:
    """The folder of a run of the same body, each rank in a process of its own under ``coverage
    run``."""
    suite = new_suite()
    suite.write("work.py", WORK)
    suite.write("by_hand.py", BY_HAND)
    for arguments in ((), ("0",), ("1",)):
        coverage(
            suite.directory, "run", "--branch", "-p", "--include=work.py", "by_hand.py", *arguments
        )
    coverage(suite.directory, "combine")
    return suite.directory


WAYS = {
    "plain": (),
    "spawn": ("--ddp-start-method=spawn",),
    "xdist": ("-n", "2"),
    "isolated": ("--ddp-isolate",),
}


@pytest.mark.parametrize("way", WAYS)
def test_equal_to_the_same_body_by_hand(
    written: Callable[[], Suite], by_hand: Path, way: str
) -> None:
    suite = written()
    finished = suite.run(*COV, "--cov-branch", *WAYS[way], extra=(), timeout=120)
    finished.assert_outcomes(passed=1, failed=1)
    assert lines_of(suite.directory) == lines_of(by_hand)
    assert arcs_of(suite.directory) == arcs_of(by_hand)
    assert left_in(suite.directory) == [".coverage"]


def test_equal_on_workers_with_files_of_their_own(
    written: Callable[[], Suite], by_hand: Path, tmp_path: Path
) -> None:
    suite = written()
    suite.write(".coveragerc", f"[paths]\nall =\n    {suite.directory}\n    {tmp_path}\n")
    there = ("-d", f"--tx=popen//chdir={tmp_path}", f"--rsyncdir={suite.directory}")
    finished = suite.run(*COV, "--cov-branch", *there, str(suite.directory), extra=(), timeout=120)
    finished.assert_outcomes(passed=1, failed=1)
    assert arcs_of(suite.directory) == arcs_of(by_hand)


def test_equal_under_coverage_run(written: Callable[[], Suite], by_hand: Path) -> None:
    suite = written()
    arguments = ("run", "--branch", "--include=work.py", "-m", "pytest", "-p", "no:cacheprovider")
    printed = coverage(suite.directory, *arguments)
    assert "1 failed, 1 passed" in printed
    assert arcs_of(suite.directory) == arcs_of(by_hand)
    assert left_in(suite.directory) == [".coverage"]


def test_code_that_the_host_imports(written: Callable[[], Suite]) -> None:
    suite = written()
    suite.run(*COV, "--ddp-import=host", extra=FORKED)
    assert {"def fails(rank):", 'raise ValueError("of rank 1")'} <= texts_of(suite.directory)
    assert left_in(suite.directory) == [".coverage"]


def test_append_and_context(written: Callable[[], Suite]) -> None:
    suite = written()
    suite.run(*COV, "--cov-context=test", "-k", "branches")
    assert "total = 2" in texts_of(suite.directory)
    assert 'raise ValueError("of rank 1")' not in texts_of(suite.directory)
    suite.run(*COV, "--cov-context=test", "--cov-append", "-k", "fails")
    assert {"total = 2", 'raise ValueError("of rank 1")'} <= texts_of(suite.directory)
    contexts = data_of(suite.directory).measured_contexts()
    assert {f"test_work.py::test_{name}|run" for name in ("branches", "fails")} <= contexts


def test_a_run_that_is_broken_off_leaves_no_file(written: Callable[[], Suite]) -> None:
    """pytest-cov reports nothing of it."""
    suite = written()
    finished = suite.run(*COV, "-x", extra=FORKED)
    assert finished.returncode == pytest.ExitCode.TESTS_FAILED
    assert left_in(suite.directory) == []


# ---------------------------------------------------------------- ranks that die

DEATHS = """
    import os
    import signal
    import threading

    import torch.distributed as dist


    def exits(rank):
        if rank == 1:
            last = "of os._exit"
            os._exit(3)
        return rank


    def hangs(rank):
        if rank == 0:
            last = "of the hang"
            dist.barrier()
        return rank


    def too_long(rank):
        last = "of the timeout"
        threading.Event().wait()


    def crashes(rank):
        last = "of the set-up"
        return rank
"""
DEADLY_TESTS = """
    import os
    import signal

    import pytest
    import work

    pytestmark = pytest.mark.ddp(world_size=2)

    def test_exits(ddp):
        work.exits(ddp.rank)

    def test_hangs(ddp):
        work.hangs(ddp.rank)

    @pytest.mark.ddp(timeout=2)
    def test_too_long(ddp):
        work.too_long(ddp.rank)

    @pytest.fixture
    def prepared(ddp):
        work.crashes(ddp.rank)

    def test_crashes(ddp, prepared):
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_ranks_that_were_killed_count_up_to_that(suite: Suite) -> None:
    suite.write("work.py", DEATHS)
    suite.write("test_work.py", DEADLY_TESTS)
    finished = suite.run(*COV, timeout=90)
    finished.assert_outcomes(failed=4)
    lasts = {text for text in texts_of(suite.directory) if text.startswith("last = ")}
    ends = ("os._exit", "the hang", "the timeout", "the set-up")
    assert lasts == {f'last = "of {end}"' for end in ends}
    assert left_in(suite.directory) == [".coverage"]


# ---------------------------------------------------------------- settings

CHILDREN = """
    import pytest
    import subprocess
    import sys

    import torch
    import work

    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            return work.branches(index)

    @pytest.mark.ddp(world_size=2)
    def test_loads(ddp):
        assert len(list(torch.utils.data.DataLoader(Data(), num_workers=1))) == 2

    @pytest.mark.ddp(world_size=2)
    def test_starts(ddp):
        subprocess.run([sys.executable, "-c", "import work; work.never(0)"], check=True)
"""
RC = """
    [run]
    concurrency = multiprocessing, thread
    patch = subprocess
    relative_files = true
    parallel = true
    source = .
"""


def test_children_of_ranks_as_coverage_has_them(written: Callable[[], Suite]) -> None:
    """Settings in another folder, by which children of processes are measured, too."""
    suite = written()
    suite.write("test_work.py", CHILDREN)
    suite.write("settings/rc", RC)
    finished = suite.run("--cov", "--cov-report=", "--cov-config=settings/rc", timeout=90)
    finished.assert_outcomes(passed=2)
    assert {"return total", "return rank"} <= texts_of(suite.directory)
    assert data_of(suite.directory).measured_files() >= {"work.py", "test_work.py"}
    assert left_in(suite.directory) == [".coverage"]


def test_what_is_not_to_be_counted(written: Callable[[], Suite]) -> None:
    suite = written()
    suite.write(
        "test_work.py",
        """
        import pytest
        import work

        @pytest.mark.no_cover
        @pytest.mark.ddp(world_size=2)
        def test_marked(ddp):
            work.branches(ddp.rank)

        @pytest.mark.ddp(world_size=2)
        def test_counts_after_it(ddp, cov):
            work.never(ddp.rank)
        """,
    )
    suite.run(*COV).assert_outcomes(passed=2)
    assert "total = 2" not in texts_of(suite.directory)
    assert "return rank" in texts_of(suite.directory)
    suite.run(*COV, "--no-cov").assert_outcomes(passed=2)


UNUSED = """
    import sys

    import pytest

    @pytest.mark.ddp(world_size=2)
    def test_is_not_there(ddp):
        assert not [name for name in sys.modules if name.partition(".")[0] == "coverage"]

    def test_nor_here():
        assert not [name for name in sys.modules if name.partition(".")[0] == "coverage"]
"""


def test_without_coverage_nothing_is_imported(suite: Suite) -> None:
    suite.write("test_unused.py", UNUSED)
    suite.run().assert_outcomes(passed=2)


def test_older_releases_are_named(suite: Suite) -> None:
    """Releases are named that cannot hand on their configuration."""
    suite.write(
        "conftest.py",
        """
        from coverage.config import CoverageConfig

        if hasattr(CoverageConfig, "serialize"):
            del CoverageConfig.serialize
        """,
    )
    suite.write("work.py", WORK)
    suite.write("test_work.py", TESTS)
    finished: Finished = suite.run(*COV, "-k", "branches", env={"COLUMNS": "80"})
    finished.assert_outcomes(passed=1)
    assert "cannot measure ranks: 7.10 or newer can" in flat(" ".join(finished.warnings))
    assert os.path.exists(suite.directory / ".coverage")
