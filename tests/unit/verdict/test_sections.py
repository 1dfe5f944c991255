"""Captured output of ranks: whose, once, in which report."""

from __future__ import annotations

import pytest
from _pytest.reports import TestReport

from pytest_ddp.outcome.outcome import Ending, RankOutcome
from pytest_ddp.protocol.messages import Phase
from pytest_ddp.settings.options import Output
from tests.unit import handmade as made
from tests.unit.handmade import (
    FAILED_SETUP,
    call_of,
    merged,
)

SETUP, CALL, TEARDOWN = Phase


def printing(number: int, text: str, call: TestReport | None = None) -> RankOutcome:
    base = call or made.report(CALL)
    base.sections = [("Captured stdout call", text)]
    return made.passing(number, made.through_json(base))


def fails() -> TestReport:
    return made.failed("assert 1 == 2, 'assert 1 == 2'")


@pytest.mark.parametrize(
    ("output", "titles"),
    [
        (Output.FAILED, ["[rank 1]"]),
        (Output.ALL, ["[rank 0]", "[rank 1]", "[rank 2]"]),
        (Output.RANK0, ["[rank 0]"]),
    ],
)
def test_whose_output_of_a_failed_test(output: Output, titles: list[str]) -> None:
    ranks = [printing(r, f"of {r}\n", fails() if r == 1 else None) for r in range(3)]
    report = call_of(merged(*ranks, output=output))
    assert [title for title, _ in report.sections] == [
        f"Captured stdout call {ranks}" for ranks in titles
    ]


@pytest.mark.parametrize(
    ("output", "count"), [(Output.FAILED, 3), (Output.ALL, 3), (Output.RANK0, 1)]
)
def test_whose_output_of_a_passed_test(output: Output, count: int) -> None:
    ranks = [printing(r, f"of {r}\n") for r in range(3)]
    assert len(call_of(merged(*ranks, output=output)).sections) == count


def test_output_where_no_single_rank_failed() -> None:
    ranks = [printing(0, "of 0\n", made.skipped("no GPU")), printing(1, "of 1\n")]
    assert len(call_of(merged(*ranks)).sections) == 2


def test_output_of_an_expected_failure() -> None:
    ranks = [printing(0, "of 0\n", made.xfailed("known")), printing(1, "of 1\n")]
    assert len(call_of(merged(*ranks)).sections) == 2


def test_output_is_ordered_by_rank() -> None:
    ranks = [printing(r, f"of {r}\n") for r in (2, 0, 1)]
    texts = [text for _, text in call_of(merged(*ranks)).sections]
    assert texts == ["of 0\n", "of 1\n", "of 2\n"]


def test_teardown_report_shows_the_ranks_that_failed_in_call() -> None:
    """The terminal shows a failed test's output in teardown from that report."""
    ranks = []
    for r in range(2):
        torn = made.report(TEARDOWN, sections={"Captured stdout teardown": f"of {r}"})
        call = fails() if r else made.report(CALL)
        ranks.append(made.rank(r, made.report(SETUP), call, torn))
    assert merged(*ranks)[2].sections == [("Captured stdout teardown [rank 1]", "of 1")]


def test_like_output_once() -> None:
    texts = ["same", "other", "same", "same"]
    report = call_of(merged(*(printing(r, text) for r, text in enumerate(texts))))
    assert report.sections == [
        ("Captured stdout call [ranks 0, 2-3]", "same"),
        ("Captured stdout call [rank 1]", "other"),
    ]


def test_output_is_ordered_by_phase() -> None:
    first = made.report(CALL, sections={"Captured stdout call": "b", "Captured log call": "c"})
    second = made.report(CALL, sections={"Captured stderr setup": "a", "Captured stdout call": "b"})
    report = call_of(merged(made.passing(0, first), made.passing(1, second)))
    assert report.sections == [
        ("Captured stderr setup [rank 1]", "a"),
        ("Captured stdout call [ranks 0-1]", "b"),
        ("Captured log call [rank 0]", "c"),
    ]


def test_sections_of_the_same_title_stay_apart() -> None:
    call = made.report(CALL)
    call.sections = [("Mine", "x"), ("Mine", "x")]
    assert call_of(merged(made.passing(0, call))).sections == [("Mine [rank 0]", "x")] * 2


def test_last_words_of_a_dead_rank() -> None:
    setup = made.report(SETUP, sections={"Captured stdout setup": "setting up\n"})
    dead = made.rank(
        1, setup, ending=Ending.EXITED, returncode=-11, stdout="last words", stderr="and errors"
    )
    reports = merged(made.passing(0), dead)
    assert call_of(reports).sections == [
        ("Captured stdout setup [rank 1]", "setting up\n"),
        ("Captured stdout call [rank 1]", "last words"),
        ("Captured stderr call [rank 1]", "and errors"),
    ]
    assert "last words" not in str(reports[2].sections)


def test_last_words_of_a_rank_that_was_stopped_in_its_call_after_another_s_setup_failed() -> None:
    ranks = (
        made.leaving_setup(0, FAILED_SETUP),
        made.lost_in_call(1, Ending.STOPPED, stdout="waiting\n"),
    )
    sections = merged(*ranks, output=Output.ALL)[0].sections
    assert sections == [("Captured stdout call [rank 1]", "waiting\n")]


def test_peers_of_a_failed_rank_keep_their_output_to_themselves() -> None:
    peer = made.lost_in_call(1, Ending.STOPPED, stdout="waiting\n")
    (section,) = call_of(merged(printing(0, "of 0\n", fails()), peer)).sections
    assert section == ("Captured stdout call [rank 0]", "of 0\n")
    (section,) = call_of(merged(printing(0, "of 0\n"), peer, timeout=5.0)).sections
    assert section == ("Captured stdout call [rank 1]", "waiting\n")


def test_output_after_the_last_report() -> None:
    ranks = made.passing(0, stdout="from an exit handler\n"), made.passing(1)
    assert merged(*ranks)[2].sections == [
        ("Captured stdout teardown [rank 0]", "from an exit handler\n")
    ]


def test_very_long_output_is_whole() -> None:
    text = "x" * 10_000_000
    report = call_of(merged(printing(0, text), printing(1, text)))
    assert report.sections == [("Captured stdout call [ranks 0-1]", text)]


def test_output_with_a_lone_surrogate() -> None:
    assert call_of(merged(printing(0, "a\ud800b"))).sections[0][1] == "a\\ud800b"
