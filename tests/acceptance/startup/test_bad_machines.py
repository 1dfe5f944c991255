"""A machine on which every ddp test fails alike, or hangs, is reported before the first one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.suite import UNDER_XDIST, Suite

LONG = "directory has a path of 90 characters"
SOURCE = """
    import pytest

    @pytest.mark.ddp(world_size=1)
    def test_here(ddp, tmp_path):
        assert tmp_path.is_dir()
"""


@pytest.fixture
def long_tempdir(tmp_path: Path) -> str:
    path = tmp_path / ("x" * (90 - len(str(tmp_path)) - 1))
    path.mkdir()
    return str(path)


@pytest.mark.parametrize("args", [(), ("-q",)])
@pytest.mark.skipif(UNDER_XDIST, reason="there workers warn")
def test_a_long_temporary_directory_is_reported_once_and_first(
    suite: Suite, long_tempdir: str, args: tuple[str, ...]
) -> None:
    suite.write("test_suite.py", SOURCE)
    run = suite.run(*args, env={"TMPDIR": long_tempdir})
    run.assert_outcomes(passed=1)
    assert run.flat.count(LONG) == 1
    before, _ = run.stdout.split("1 passed")
    assert f"It is {long_tempdir}\n" in before
    assert run.warnings == ()


def test_workers_warn_of_it(suite: Suite, long_tempdir: str) -> None:
    suite.write("test_suite.py", SOURCE)
    run = suite.run("-n1", env={"TMPDIR": long_tempdir}, extra=())
    run.assert_outcomes(passed=1)
    assert "1 passed, 1 warning in" in run.stdout
    assert run.flat.count(LONG) == 1


def test_suites_without_ddp_tests_hear_nothing(suite: Suite, long_tempdir: str) -> None:
    suite.write("test_plain.py", "def test_plain(): pass")
    run = suite.run(env={"TMPDIR": long_tempdir})
    run.assert_outcomes(passed=1)
    assert LONG not in run.flat


def test_a_loopback_that_is_down_is_reported(suite: Suite) -> None:
    """pytest runs in a network namespace of its own, whose interface nobody has brought up."""
    apart = ["unshare", "--map-root-user", "--net"]
    if subprocess.run([*apart, "true"], capture_output=True).returncode:
        pytest.skip("no namespaces may be made here")
    suite.write("test_suite.py", SOURCE)
    command = [*apart, sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
    run = subprocess.run(
        ["timeout", "-k", "5", "120", *command], cwd=suite.directory, capture_output=True, text=True
    )
    shown, _, failed = run.stdout.partition("ERRORS")
    assert "ddp: the network interface lo is down" in shown
    assert shown.rstrip().count("ip link set lo up") == 1
    assert "Unable to find address for: lo" in failed
    assert run.returncode == pytest.ExitCode.TESTS_FAILED
