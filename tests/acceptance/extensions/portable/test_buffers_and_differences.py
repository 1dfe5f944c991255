"""``portable=`` on buffers in flight and on what NCCL does otherwise: legal programs and mutants.

One inner session runs all of them. A mutant is a legal program with one changed line, which the
finding names.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_ddp.extensions.portable.differences import DIFFERENCES, Difference
from tests.acceptance.extensions.portable import mutants
from tests.acceptance.suite import Finished, Suite, flat

HERE = Path(__file__).parent
_KINDS = ("a buffer touched in flight", "a difference between gloo and NCCL")
_BY_CALL = [row for row in DIFFERENCES if row.judged == "call"]
_BY_MESSAGES = [row for row in DIFFERENCES if row.judged == "messages" and row.name != "ring"]
_BY_VALUES = [row for row in DIFFERENCES if row.judged == "values"]


@pytest.fixture(scope="module")
def suite_of_mutants() -> tuple[str, dict[str, int]]:
    return mutants.suite()


@pytest.fixture(scope="module")
def finished(
    new_suite: Callable[[], Suite], suite_of_mutants: tuple[str, dict[str, int]]
) -> Finished:
    suite = new_suite()
    suite.write("test_legal.py", mutants.PROGRAMS.read_text())
    suite.write("test_mutants.py", suite_of_mutants[0])
    suite.write("test_differences.py", (HERE / "difference_examples.py").read_text())
    return suite.run("--ddp-timeout=100", timeout=400)


def test_legal_programs_are_not_accused(finished: Finished) -> None:
    legal = {
        nodeid: result for nodeid, result in finished.results.items() if "test_legal.py" in nodeid
    }
    red = {nodeid: result.text for nodeid, result in legal.items() if result.verdict != "passed"}
    assert not red
    assert len(legal) >= 40


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda mutant: mutant.test)
def test_a_mutant_is_named(
    finished: Finished, suite_of_mutants: tuple[str, dict[str, int]], mutant: mutants.Mutant
) -> None:
    result = finished[f"test_mutants.py::{mutant.test}"]
    assert result.verdict == "failed"
    findings = [text for text in result.text.split("\n\n") if any(kind in text for kind in _KINDS)]
    line = f"test_mutants.py:{suite_of_mutants[1][mutant.test]}\n"
    assert any(line in finding for finding in findings), result.text


@pytest.mark.parametrize("row", [*_BY_CALL, *_BY_MESSAGES, *_BY_VALUES], ids=lambda row: row.name)
def test_a_difference_is_found(finished: Finished, row: Difference) -> None:
    result = finished[f"test_differences.py::test_found[{row.name}]"]
    assert result.verdict == "failed"
    text = flat(result.text)
    assert text.count(f": {row.what}") == text.count("not portable to nccl") > 0
    assert f"NCCL: {row.nccl}. Gloo: {row.gloo}." in text


def test_gloo_refuses_what_the_table_says(finished: Finished) -> None:
    refused = {
        nodeid: result.verdict
        for nodeid, result in finished.results.items()
        if "test_refused_by_gloo" in nodeid or "test_all_rows" in nodeid
    }
    assert len(refused) == 6
    assert set(refused.values()) == {"passed"}
