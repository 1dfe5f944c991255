"""What the table of habits makes of what a run has left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fidelity.habits.__main__ import _BEGIN, _END, DOCUMENT, HABITS, Runs
from fidelity.habits.ways import SUITES, WAYS, Seen


def report(test: str, outcome: str = "passed", **other: Any) -> dict[str, Any]:
    known = {"kind": "report", "test": test, "when": "call", "outcome": outcome, "subtest": False}
    return {**known, "text": "", "output": "", **other}


def seen(folder: Path, *records: dict[str, Any], code: int | None = 0, output: str = "") -> Seen:
    return Seen(folder, code, 1.0, output, records)


def runs(one: Seen) -> Runs:
    return Runs(*[one] * len(Runs.__slots__))


def test_a_test_has_passed_if_nothing_else_was_reported(tmp_path: Path) -> None:
    good = seen(tmp_path, report("test_a"), report("test_a", "failed", subtest=True))
    assert good.passed("a")
    assert not seen(tmp_path, report("test_a"), report("test_a", "failed")).passed("a")
    assert not seen(tmp_path, report("test_a", "failed", when="setup")).passed("a")
    assert not seen(tmp_path).passed("a")


@pytest.mark.parametrize(
    ("records", "works"),
    [
        ([report("test_fails_on_one", "failed")], True),
        ([report("test_fails_on_one", "failed"), report("test_fails_on_one")], False),
        ([report("test_fails_on_one")], False),
        ([], False),
    ],
)
def test_one_verdict(tmp_path: Path, records: list[dict[str, Any]], works: bool) -> None:
    one = runs(seen(tmp_path, *records))
    assert HABITS["a test that fails on one rank is one failed test"](one) is works


@pytest.mark.parametrize(("files", "works"), [(1, True), (2, False), (0, False)])
def test_one_process_writes_the_file(tmp_path: Path, files: int, works: bool) -> None:
    (tmp_path / "out.xml").write_text(
        '<testsuites><testsuite><testcase name="test_fails_on_one"><failure/></testcase>'
        '<testcase name="test_property"><properties><property name="answer" value="42"/>'
        "</properties></testcase></testsuite></testsuites>"
    )
    one = runs(seen(tmp_path, output="generated xml file: out.xml\n" * files))
    assert HABITS["`--junitxml`, with `record_property`"](one) is works


def test_a_run_that_left_nothing_speaks_for_no_habit(tmp_path: Path) -> None:
    nothing = runs(seen(tmp_path, code=None))
    assert [habit for habit, works in HABITS.items() if works(nothing)] == []


def test_each_way_has_its_suite_and_the_page_its_place() -> None:
    assert all((SUITES / f"{way.suite}.py").exists() for way in WAYS)
    page = DOCUMENT.read_text()
    assert page.index(_BEGIN) < page.index(_END)
