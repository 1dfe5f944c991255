"""What is as expected and what is not, on reports made by hand."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_ddp.extensions.doctor.selftest.judge import exit_code, judge

EXPECTED = {"test_good": ("passed", ""), "test_bad": ("failed", "only here")}


def report(test: str, category: str, text: str = "") -> dict[str, Any]:
    return {"test": test, "category": category, "text": text, "seconds": 0.5}


def note(test: str, what: str, rank: int, size: int = 2) -> dict[str, str]:
    return {"test": test, "what": what, "rank": str(rank), "world_size": str(size)}


REPORTS = [
    *(report("test_good", ""), report("test_good", "passed"), report("test_good", "")),
    *(report("test_bad", ""), report("test_bad", "failed", "assert: only here")),
]
PRESENCE = [
    *(note("test_good", what, rank) for what in ("began", "ended") for rank in (0, 1)),
    *(note("test_bad", "began", rank) for rank in (0, 1)),
]


def problems(reports: list[dict[str, Any]], presence: list[dict[str, str]]) -> dict[str, str]:
    return {row.test: row.problem for row in judge(EXPECTED, reports, presence, 2) if row.problem}


def test_all_is_as_expected() -> None:
    rows = judge(EXPECTED, REPORTS, PRESENCE, 2)
    assert [(row.test, row.got, row.problem) for row in rows] == [
        ("test_good", "passed", ""),
        ("test_bad", "failed", ""),
    ]
    assert rows[0].seconds == 1.5


def test_a_failure_that_is_reported_as_passed() -> None:
    changed = [*REPORTS[:-1], report("test_bad", "passed")]
    assert problems(changed, PRESENCE) == {"test_bad": "must be failed, is passed"}


def test_a_failure_for_another_reason_is_shown() -> None:
    changed = [*REPORTS[:-1], report("test_bad", "failed", "no such file")]
    (row,) = (row for row in judge(EXPECTED, changed, PRESENCE, 2) if row.problem)
    assert 'its text lacks "only here"' in row.problem
    assert row.text == "no such file"


def test_a_test_without_a_verdict() -> None:
    assert problems(REPORTS[:3], PRESENCE) == {"test_bad": "must be failed, is no verdict"}
    assert len(problems([], [])) == 2


def test_a_test_with_two_verdicts() -> None:
    twice = [*REPORTS, report("test_good", "error", "late")]
    assert problems(twice, PRESENCE) == {"test_good": "must be passed, is passed+error"}


def test_a_test_that_nobody_expects() -> None:
    more = [*REPORTS, report("test_new", "passed")]
    assert problems(more, PRESENCE) == {"test_new": "must be no such test, is passed"}


@pytest.mark.parametrize("what", ["began", "ended"])
def test_a_verdict_that_a_rank_has_not_earned(what: str) -> None:
    missing = [n for n in PRESENCE if n != note("test_good", what, 1)]
    assert problems(REPORTS, missing) == {"test_good": f"{what} on 0, and had to on all 2 ranks"}


def test_nobody_ran_it() -> None:
    assert problems(REPORTS, []) == dict.fromkeys(
        EXPECTED, "began on none, and had to on all 2 ranks"
    )


def test_it_ran_at_another_size_or_outside_of_ranks() -> None:
    other = [note("test_good", what, 0, 1) for what in ("began", "ended")]
    outside = [{**n, "rank": "", "world_size": ""} for n in other]
    for presence in (other, outside):
        assert "test_good" in problems(REPORTS, [*presence, *PRESENCE[-2:]])


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [(["passed", "skipped", "xfailed"], 0), (["passed", "failed"], 1), (["passed+error"], 1)],
)
def test_the_exit_code_that_follows(verdicts: list[str], code: int) -> None:
    assert exit_code({str(i): (verdict, "") for i, verdict in enumerate(verdicts)}) == code
