"""``portable=`` on legal programs, on mutants of them, and on what NCCL does otherwise.

A mutant is a legal program with one changed line, which the finding names.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_ddp.extensions.portable.differences import DIFFERENCES, Difference
from tests.acceptance.extensions.portable import mutants
from tests.acceptance.suite import Finished, Suite, flat

HERE = Path(__file__).parent
MODELS = HERE.parent / "comms" / "example_models.py"
FOUND = [
    row
    for row in DIFFERENCES
    if row.judged in ("call", "messages", "values") and row.name != "ring"
]


@pytest.fixture(scope="module")
def legal(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write(MODELS.name, MODELS.read_text())
    for name, source in mutants.PROGRAMS.items():
        suite.write(f"test_{name}.py", source)
    return suite.run("--ddp-timeout=200", timeout=500)


def test_legal_programs_are_not_accused(legal: Finished) -> None:
    red = {
        nodeid: result.text
        for nodeid, result in legal.results.items()
        if result.verdict not in ("passed", "skipped")
    }
    assert not red
    assert len(legal.results) > 100
    assert "NotPortableWarning" not in legal.stdout


@pytest.fixture(scope="module")
def wrong(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write(MODELS.name, MODELS.read_text())
    for name, source in mutants.suites()[0].items():
        suite.write(f"test_{name}.py", source)
    suite.write("test_differences.py", (HERE / "difference_examples.py").read_text())
    return suite.run("--ddp-timeout=100", "--ddp-diagnosis=found", timeout=400)


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda mutant: mutant.test)
def test_a_mutant_is_named(wrong: Finished, mutant: mutants.Mutant) -> None:
    result = wrong[mutant.test]
    assert result.verdict == "failed"
    named = mutants.suites()[1][mutant.test]
    findings = [text for text in result.text.split("\n\n") if f": {mutant.kind}: " in flat(text)]
    assert any(all(f"{place}\n" in text for place in named) for text in findings), result.text


def test_groups_of_the_same_ranks_are_told_apart(wrong: Finished) -> None:
    (mutant,) = [m for m in mutants.MUTANTS if m.program == "two_groups_of_the_same_ranks"]
    orders = "all_reduce on ranks 0,1 and all_reduce on ranks 0,1 (group 2) in opposite orders"
    assert orders in flat(wrong[mutant.test].text)


def test_a_finding_has_a_kind_of_its_own(wrong: Finished) -> None:
    records = [json.loads(file.read_text()) for file in (wrong.directory / "found").glob("*.json")]
    assert len(records) == len(mutants.MUTANTS) + len(FOUND)
    for record in records:
        (failure,) = record["failures"]
        assert failure["kind"] == "finding"
        assert failure["verdict"].startswith("not portable to nccl: ")
        assert any("test_" in note for note in failure["notes"])


@pytest.mark.parametrize("row", FOUND, ids=lambda row: row.name)
def test_a_difference_is_found(wrong: Finished, row: Difference) -> None:
    result = wrong[f"test_differences.py::test_found[{row.name}]"]
    assert result.verdict == "failed"
    text = flat(result.text)
    assert text.count(f": {row.what}") == text.count("not portable to nccl") > 0
    assert f"NCCL: {row.nccl}. Gloo: {row.gloo}." in text


def test_gloo_refuses_the_rows_of_the_table_that_it_cannot_run(wrong: Finished) -> None:
    refused = {
        nodeid: result.verdict
        for nodeid, result in wrong.results.items()
        if "test_refused_by_gloo" in nodeid or "test_all_rows" in nodeid
    }
    assert len(refused) == 6
    assert set(refused.values()) == {"passed"}
