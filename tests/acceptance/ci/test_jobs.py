"""The files of docs/ci do what they are for: each job is run, with a test that hangs."""

from __future__ import annotations

import os
import re
import signal
import textwrap
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_ddp.extensions.doctor.selftest.cases import selftest_cases
from tests.acceptance.ci.jobs import FILES, STAYS, Checkout, Job, every
from tests.acceptance.suite import UNDER_XDIST
from tests.warm.python import standing_in

pytestmark = pytest.mark.skipif(UNDER_XDIST, reason="jobs say themselves how they run tests")

JOBS = every()
GROUPS = JOBS[:2]
START_LIMIT = 120.0


@pytest.fixture(scope="module")
def python() -> Iterator[Path]:
    """Runs the pytest of a job that nobody interrupts: a signal would end this alone."""
    with standing_in() as program:
        yield program


def _names(report: Path) -> list[str]:
    return [case.get("name", "") for case in ElementTree.parse(report).iter("testcase")]


@pytest.mark.parametrize("job", JOBS[2:], ids=str)
def test_a_red_job_shows_why(job: Job, tmp_path: Path, python: Path) -> None:
    checkout = Checkout(tmp_path, python)
    codes = checkout.run(job)
    log = checkout.read("log")
    assert 1 in codes, log
    (report,) = checkout.directory.rglob("junit.xml")
    if "test_hangs" in _names(report):
        shown = (*checkout.directory.glob("annotated"), *checkout.directory.rglob("summary.md"))
        assert any("deadlock&#58; rank 1 waits" in file.read_text() for file in shown), log
    left = {file.suffix for file in report.parent.rglob("*test_hangs*")}
    assert left >= {".json", ".html"}, log


def test_the_groups_of_a_job_run_each_test_once(tmp_path: Path, python: Path) -> None:
    names, codes = [], []
    for job in GROUPS:
        checkout = Checkout(tmp_path / job.name, python)
        codes += checkout.run(job)
        names += _names(checkout.directory / "reports" / "junit.xml")
        assert checkout.read("summary.md").startswith(f"### Group {job.environment['GROUP']}: 1 ")
    assert sorted(names) == ["test_good", "test_hangs"]
    assert sorted(codes) == [0] * (len(codes) - 1) + [1]


def _cancel(checkout: Checkout, job: Job, script: str, number: signal.Signals) -> int:
    """Run a script until its test stays, and send a signal to its shell or what replaced it."""
    (checkout.directory / "tests" / "test_model.py").write_text(textwrap.dedent(STAYS))
    process = checkout.start(job, script)
    try:
        deadline = time.monotonic() + START_LIMIT
        while not all((checkout.directory / f"begun{rank}").exists() for rank in (0, 1)):
            assert time.monotonic() < deadline, checkout.read("log")
            assert process.poll() is None, checkout.read("log")
            time.sleep(0.05)
        process.send_signal(number)
        return process.wait(60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def test_a_cancelled_job_of_github_writes_its_report(tmp_path: Path) -> None:
    checkout, job = Checkout(tmp_path), GROUPS[0]
    script = next(script for script in job.scripts if "-m pytest " in script)
    script = script.replace("--splits=2", "--splits=1")
    code = _cancel(checkout, job, script, signal.SIGINT)
    assert code == pytest.ExitCode.INTERRUPTED, checkout.read("log")
    assert _names(checkout.directory / "reports" / "junit.xml") == ["test_fails"]


def test_a_terminated_job_writes_its_report_with_our_conftest(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path)
    (checkout.directory / "conftest.py").write_text((FILES / "conftest.py").read_text())
    script = "exec python -m pytest --junitxml=reports/junit.xml"
    code = _cancel(checkout, GROUPS[0], script, signal.SIGTERM)
    assert code == pytest.ExitCode.INTERRUPTED, checkout.read("log")
    assert _names(checkout.directory / "reports" / "junit.xml") == ["test_fails"]
    assert "SIGTERM" not in checkout.read("log")  # no rank had its handler changed


def test_parts_of_the_proof_are_there() -> None:
    asked = re.findall(r"--prove=(\S+)", "".join(file.read_text() for file in FILES.iterdir()))
    known = {part.name for part in selftest_cases(0)}
    assert {name for names in asked for name in names.split(",")} <= known
    assert asked
