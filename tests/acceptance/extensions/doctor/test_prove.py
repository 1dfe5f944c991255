"""``doctor --prove``: green on this plugin, red on one that is broken."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from pytest_ddp.extensions.doctor.selftest import inner_session
from pytest_ddp.extensions.doctor.selftest.cases import SelftestCase
from pytest_ddp.extensions.doctor.selftest.prove import SelftestResult
from tests.acceptance.extensions.doctor.test_doctor import install
from tests.environment import without_outer_run
from tests.warm import interpreter

VERDICTS = SelftestCase("verdicts", "", ("test_verdicts.py",), "gloo", 2)
PROVE = """
import pickle
from pytest_ddp.extensions.doctor.selftest.cases import SelftestCase
from pytest_ddp.extensions.doctor.selftest.prove import prove

(result,) = prove([{part!r}], 0, lambda _: None)
with open({file!r}, "wb") as file:
    pickle.dump(result, file)
"""
WORKERS = SelftestCase("workers", "", ("test_leases.py",), "gloo", 2)


def doctor(directory: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = ("-m", "pytest_ddp", "doctor", *arguments)
    return interpreter.run(command, timeout=600, cwd=directory, env=without_outer_run() | env)


def test_everything_that_runs_here(tmp_path: Path) -> None:
    run = doctor(tmp_path, "--json", "--prove", "--report=out", CUDA_VISIBLE_DEVICES="")
    assert run.returncode == 0, run.stdout + run.stderr
    assert json.loads(run.stdout)["able"] is True
    assert "2 of 13 parts ran, all as expected. The report is in out/" in run.stderr
    shown = json.loads((tmp_path / "out" / "pytest-ddp-report.json").read_text())
    assert shown["green"] is True
    ran = {result["part"]["name"] for result in shown["results"] if not result["obstacle"]}
    assert ran == {"gloo", "workers"}
    text = (tmp_path / "out" / "pytest-ddp-report.md").read_text()
    assert text.startswith("# pytest-ddp: 2 of 13 parts ran, all as expected\n")
    assert "| crashes | what a GPU dies of | it needs 1 GPUs, and 0 are usable |" in text
    assert "| test_is_killed | failed |" in text


def test_guarantees_without_a_gpu(tmp_path: Path) -> None:
    """MEM-04 alone, whose mutant marks CUDA as initialised where there is none."""
    shutil.copy(inner_session.SUITES / "test_guarantees.py", tmp_path)
    options = ("-q", "-k", "MEM-04", "--ddp-world-size=2", "-p", "no:cacheprovider")
    run = interpreter.run(
        ("-m", "pytest", *options, "test_guarantees.py"), timeout=600, cwd=tmp_path
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "2 passed" in run.stdout


@pytest.fixture
def mutate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a plugin that is installed in the selftest's sessions."""
    install(tmp_path, "mutant")
    site = tmp_path / "site-packages"
    monkeypatch.setenv("PYTHONPATH", str(site))
    return site / "mutant.py"


def outcome(part: SelftestCase) -> SelftestResult:
    """The outcome of a part that a warm interpreter runs, whose sessions are as warm."""
    with tempfile.NamedTemporaryFile() as file:
        run = interpreter.run(("-c", PROVE.format(part=part, file=file.name)), timeout=600)
        assert run.returncode == 0, run.stdout + run.stderr
        result = pickle.load(file)
    assert isinstance(result, SelftestResult)
    return result


PASSES_ALL = """
import pytest

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report):
    report.outcome = "passed"
"""

RANK_0_ALONE = """
import dataclasses
from pytest_ddp.session import controller

judge = controller.judge

def judge_rank_0(outcome, output):
    ranks = tuple(dataclasses.replace(outcome.ranks[0], rank=rank.rank) for rank in outcome.ranks)
    return judge(dataclasses.replace(outcome, ranks=ranks), output)

controller.judge = judge_rank_0
"""

RUNS_NOTHING = """
import pytest

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item):
    if hasattr(item.config, "workerinput"):
        return None
    for when in ("setup", "call", "teardown"):
        report = pytest.TestReport(item.nodeid, item.location, {}, "passed", None, when)
        item.ihook.pytest_runtest_logreport(report=report)
    return True
"""

DESELECTS = """
def pytest_collection_modifyitems(items):
    items.clear()
"""


def test_failures_that_are_reported_as_passed_are_red(mutate: Path) -> None:
    mutate.write_text(PASSES_ALL)
    result = outcome(VERDICTS)
    assert not result.is_green
    wrong = {row.test: row.problem for row in result.wrong}
    assert wrong["test_is_killed"] == "must be failed, is passed"
    assert "test_passes" not in wrong


def test_a_plugin_that_believes_rank_0_is_red(mutate: Path) -> None:
    """torch's MultiProcessTestCase did believe rank 0."""
    mutate.write_text(RANK_0_ALONE)
    wrong = {row.test for row in outcome(VERDICTS).wrong}
    assert {"test_leaves_with_code_0", "test_skips_on_one"} <= wrong


@pytest.mark.parametrize(
    ("mutant", "problem"),
    [
        (RUNS_NOTHING, "began on none, and had to on all 2 ranks"),
        (DESELECTS, "must be passed, is no verdict"),
    ],
)
def test_verdicts_that_no_rank_has_earned_are_red(mutate: Path, mutant: str, problem: str) -> None:
    mutate.write_text(mutant)
    result = outcome(WORKERS)
    assert not result.is_green
    assert {row.problem for row in result.wrong} == {problem}


def test_a_session_that_breaks_is_red_and_shown(mutate: Path) -> None:
    mutate.write_text("raise OSError('not today')\n")
    result = outcome(WORKERS)
    assert not result.is_green
    assert "had to with 0" in result.problem
    assert "not today" in result.output


def test_arguments_meant_for_the_users_tests_do_not_reach_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTEST_ADDOPTS", "--no-such-option")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("RANK", "7")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert outcome(WORKERS).is_green


def test_a_part_that_is_not_there(tmp_path: Path) -> None:
    run = doctor(tmp_path, "--prove=gloo,glue")
    assert run.returncode == 2
    assert "there is no part glue" in run.stderr


def test_a_place_for_the_report_that_cannot_be_had(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    run = doctor(tmp_path, "--prove", "--report=file")
    assert run.returncode == 2, "before anything runs"
    assert "--report=file" in run.stderr
