"""``python -m pytest_ddp summary`` of sessions that passed, failed, and were ended."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.acceptance.ci.jobs import STAYS
from tests.acceptance.extensions.summary.suites import OUTSIDE
from tests.acceptance.suite import LOADFILE, Finished, Running, Suite
from tests.warm import interpreter

START_LIMIT = 120.0
"""Seconds until all ranks of an inner test have begun, on a loaded machine."""
SOURCE = """
    import pytest
    import torch.distributed as dist

    @pytest.mark.ddp(world_size=2)
    def test_hangs(ddp):
        if ddp.rank:
            dist.barrier()

    @pytest.mark.ddp(world_size=2)
    def test_good(ddp):
        pass

    @pytest.mark.ddp(world_size=2, backend="nccl")
    def test_gpus(ddp):
        pass

    def test_without_ranks():
        assert "</pre>" == "<b>|"
"""
WRITTEN = ("--junitxml=reports/junit.xml", "--ddp-diagnosis=reports/diagnoses")


def _summary(directory: Path, *paths: str) -> subprocess.CompletedProcess[str]:
    arguments = ["-m", "pytest_ddp", "summary", *paths]
    return interpreter.run(arguments, cwd=directory, env=None, timeout=60)


@pytest.fixture(scope="module")
def finished(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("test_a.py", SOURCE)
    return suite.run(*WRITTEN, *LOADFILE)


def test_failures_are_reported_with_their_verdict(finished: Finished) -> None:
    summary = _summary(finished.directory, "reports")
    assert summary.returncode == 0, summary.stderr
    assert summary.stdout.startswith("### Tests: 2 failed, 1 passed, 1 skipped\n")
    assert "deadlock&#58; rank 1 waits in barrier" in summary.stdout
    assert "rank 1  waits  call  barrier #1 of the default group" in summary.stdout
    assert "&lt;/pre&gt;" in summary.stdout


def test_reasons_of_skips_are_reported(finished: Finished) -> None:
    (shown,) = [
        line
        for line in _summary(finished.directory, "reports").stdout.splitlines()
        if line.startswith("1 skipped: ")
    ]
    assert "GPU" in shown or "NCCL" in shown


def test_an_error_outside_of_tests_is_reported(suite: Suite) -> None:
    suite.write("test_outside.py", OUTSIDE)
    finished = suite.run(*WRITTEN, *LOADFILE)
    finished.assert_outcomes(passed=2)
    assert finished.returncode == pytest.ExitCode.TESTS_FAILED, finished.tail()
    summary = _summary(finished.directory, "reports/junit.xml").stdout
    assert summary.startswith("### Tests: 2 passed, an error outside of the tests\n")
    assert "The rank died of SIGKILL" in summary.partition("<pre>")[2]


@pytest.fixture
def staying(suite: Suite) -> Running:
    suite.write("test_ended.py", STAYS)
    running = suite.start(*WRITTEN, *LOADFILE)
    deadline = time.monotonic() + START_LIMIT
    while not all((suite.directory / f"begun{rank}").exists() for rank in (0, 1)):
        assert time.monotonic() < deadline, running.stdout
        assert running.process.poll() is None, running.stdout
        time.sleep(0.05)
    return running


def test_a_cancelled_session_shows_what_it_knew(staying: Running) -> None:
    staying.process.send_signal(signal.SIGINT)
    finished = staying.finish(60)
    assert finished.returncode == pytest.ExitCode.INTERRUPTED, finished.tail()
    summary = _summary(finished.directory, "reports")
    assert summary.stdout.startswith("### Tests: 1 failed, interrupted\n")
    assert "test_ended.py&#58;&#58;test_stays was interrupted after" in summary.stdout
    assert "rank 1 of 2 failed in call" in summary.stdout
    assert summary.returncode == 0


def test_a_terminated_session_shows_what_it_knew(staying: Running) -> None:
    staying.process.send_signal(signal.SIGTERM)
    finished = staying.finish(60)
    summary = _summary(finished.directory, "reports")
    assert summary.stdout.startswith("### Tests: 1 failure reported before pytest was ended\n")
    assert "test&#95;ended&#58;&#58;test&#95;fails" in summary.stdout
    assert summary.returncode == 1
    assert "reports: there is no JUnit file" in summary.stderr
