"""Subtests of several ranks, as one report for each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from _pytest.subtests import SubtestContext, SubtestReport

from pytest_ddp.outcome.outcome import RankOutcome, TimedReport
from pytest_ddp.protocol.messages import Phase
from pytest_ddp.settings.options import Output
from pytest_ddp.verdict.merge import Merged, judge, with_subtests
from tests.unit.handmade import failed, passing, report, run, skipped, xfailed


def subtest(of: pytest.TestReport, message: str | None = None, **values: Any) -> SubtestReport:
    return SubtestReport._new(of, SubtestContext(msg=message, kwargs=values), None, None)


def with_all(number: int, *subtests: SubtestReport) -> RankOutcome:
    timed = tuple(TimedReport(one, 0.1) for one in subtests)
    return replace(passing(number), subtests=timed)


def merged(*ranks: RankOutcome, output: Output = Output.FAILED) -> Merged:
    made = run(*ranks)
    return with_subtests(made, judge(made, output), output)


def said(made: Merged) -> list[tuple[str, str]]:
    return [
        (report._sub_test_description(), report.outcome)
        for report in made.reports
        if isinstance(report, SubtestReport)
    ]


def good(**values: Any) -> SubtestReport:
    return subtest(report(Phase.CALL), **values)


def bad(source: str = "raise ValueError('wrong')", **values: Any) -> SubtestReport:
    return subtest(failed(source), **values)


def test_alike_ones_are_one_and_stand_before_the_call() -> None:
    made = merged(*(with_all(rank, good(i=1), good(i=2)) for rank in range(2)))
    assert said(made) == [("(i=1)", "passed"), ("(i=2)", "passed")]
    assert [report.when for report in made.reports] == ["setup", "call", "call", "call", "teardown"]
    assert type(made.reports[3]) is pytest.TestReport
    assert made.diagnoses == ()


def test_one_that_only_some_ranks_have_is_no_failure() -> None:
    made = merged(with_all(0, good(i=1)), with_all(1, good(i=1), good(i=1), good(i=3)))
    assert said(made) == [("(i=1)", "passed"), ("(i=1)", "passed"), ("(i=3)", "passed")]


def test_one_that_fails_names_its_rank_and_the_others_stay() -> None:
    made = merged(with_all(0, good(i=1), good(i=2)), with_all(1, good(i=1), bad(i=2)))
    assert said(made) == [("(i=1)", "passed"), ("(i=2)", "failed")]
    text = made.reports[2].longreprtext
    assert "rank 1 of 2 failed in call: ValueError: wrong" in text
    assert made.reports[2].longrepr.reprcrash.message == "rank 1: ValueError: wrong"  # type: ignore[union-attr]
    assert [diagnosis.phase for diagnosis in made.diagnoses] == [Phase.CALL]


def test_those_that_fail_alike_are_shown_once() -> None:
    made = merged(*(with_all(rank, bad(i=2)) for rank in range(3)))
    assert "ranks 0-2 of 3 failed in call" in made.reports[1].longreprtext
    assert made.reports[1].longreprtext.count("ValueError: wrong") == 2  # and in the first line


def test_output_has_its_ranks() -> None:
    spoke = report(Phase.CALL, sections={"Captured stdout call": "words"})
    made = merged(with_all(0, subtest(spoke)), with_all(1, subtest(spoke)))
    assert made.reports[1].sections == [("Captured stdout call [ranks 0-1]", "words")]
    assert isinstance(made.reports[1], SubtestReport)


def test_skips_and_expected_failures() -> None:
    made = merged(
        *(
            with_all(rank, subtest(skipped("not here"), i=1), subtest(xfailed("known"), i=2))
            for rank in range(2)
        )
    )
    assert said(made) == [("(i=1)", "skipped"), ("(i=2)", "skipped")]
    assert made.reports[1].longrepr == ("/src/test_made.py", 12, "Skipped: not here")
    assert made.reports[2].wasxfail == "known"


def test_a_skip_on_some_ranks_fails() -> None:
    made = merged(with_all(0, subtest(skipped("not here"))), with_all(1, good()))
    assert said(made) == [("(<subtest>)", "failed")]
    assert "ranks disagree: rank 0 skipped (not here), rank 1 passed" in " ".join(
        made.reports[1].longreprtext.split()
    )


def test_a_test_without_subtests_is_left_as_it_is() -> None:
    made = run(passing(0), passing(1))
    judged = judge(made, Output.FAILED)
    assert with_subtests(made, judged, Output.FAILED) is judged
