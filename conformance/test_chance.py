"""What is found of runs with several seeds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from ddp_conformance.framework.verdict import EVIDENCE

from conformance.chance import FOLDER, Writing, differences

ROOT = Path(__file__).parents[1]

PARTS = """
def test_always_right():
    pass

def test_by_chance(pytestconfig):
    assert pytestconfig.getoption("ddp_nemesis_seed") == 1
"""


def test_a_check_that_found_nothing_wrong_is_no_check_that_could_not_look(tmp_path: Path) -> None:
    writing = Writing(tmp_path / "verdicts.json")
    ends: dict[str, list[tuple[str, object]]] = {
        "a": [(EVIDENCE, ["violated", "x"])],
        "b": [(EVIDENCE, ["undecided", "y"])],
        "c": [],
    }
    for test, properties in ends.items():
        report = pytest.TestReport(test, ("", 0, ""), {}, "failed", "", "call", (), 0, 0, 0)
        report.user_properties += properties
        writing.pytest_runtest_logreport(report)
    writing.pytest_sessionfinish()
    found = json.loads((tmp_path / "verdicts.json").read_text(encoding="utf-8"))
    assert found == {"a": "violated", "b": "undecided", "c": "failed"}


def test_verdicts_that_differ_are_shown_with_their_seeds() -> None:
    runs = {
        0: {"a": "passed", "b": "violated", "c": "passed"},
        1: {"a": "passed", "b": "undecided"},
        2: {"a": "passed", "b": "violated", "c": "passed"},
    }
    assert list(differences(runs)) == [
        "b: violated with 0, 2; undecided with 1",
        "c: passed with 0, 2; no verdict with 1",
    ]


def test_a_verdict_that_depends_on_the_seed_is_found(tmp_path: Path) -> None:
    (tmp_path / "test_parts.py").write_text(PARTS, encoding="utf-8")
    (tmp_path / "pytest.ini").touch()
    command = [sys.executable, "-m", "conformance.chance", "--seeds", "2", "test_parts.py"]
    environment = {"PYTHONPATH": str(ROOT), "PATH": ""}
    run = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 1, run.stdout + run.stderr
    assert run.stdout.splitlines()[2:] == [
        "test_parts.py::test_by_chance: failed with 0; passed with 1",
        "2 tests, seeds 0 to 1: 1 verdict by chance",
    ]
    assert (tmp_path / FOLDER / "1.txt").exists()
