"""Unequal numbers of collectives: who issued how many, and when that fails the test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from _pytest.reports import TestReport

from pytest_ddp.deadlock.collectives import unequal_collectives
from pytest_ddp.outcome.outcome import RankOutcome, TimedReport
from pytest_ddp.protocol.messages import Phase
from pytest_ddp.protocol.rank_status import GroupCount
from tests.unit import handmade as made
from tests.unit.handmade import (
    FAILED,
    FAILED_TEARDOWN,
    KNOWN,
    SKIPPED,
    STRICT,
    XFAILED,
    XPASSED,
    call_of,
    merged,
    verdict,
    whole,
    without_call,
    words,
)

SETUP, CALL, TEARDOWN = Phase


def counted(*numbers: int, calls: Sequence[TestReport | None] | None = None) -> list[RankOutcome]:
    members = range(len(numbers))
    return [
        made.passing(
            r, calls[r] if calls else None, counts=made.default_group(numbers[r], *members)
        )
        for r in members
    ]


def test_equal_numbers_of_collectives() -> None:
    assert words(merged(*counted(3, 3, 3))) == whole("passed")


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ((3, 2, 2), "rank 0 issued 3, ranks 1-2 issued 2"),
        ((2, 3, 2), "ranks 0, 2 issued 2, rank 1 issued 3"),
        ((0, 0, 1), "ranks 0-1 issued 0, rank 2 issued 1"),
    ],
)
def test_unequal_numbers_of_collectives(numbers: tuple[int, ...], said: str) -> None:
    reports = merged(*counted(*numbers))
    assert words(reports) == whole("failed")
    assert verdict(call_of(reports)) == (
        f"unequal number of collectives on the default group: {said}"
    )


def test_rank_that_has_destroyed_its_group_is_not_compared() -> None:
    both = made.default_group(1, 0, 1)
    assert unequal_collectives(made.run(made.passing(0, counts=both), made.passing(1))) == ""


def test_groups_are_reported_by_name_and_members() -> None:
    one, other = GroupCount("7", (0, 1), 4), GroupCount("7", (2, 3), 5)
    ranks = [made.passing(r, counts=(one if r < 2 else other,)) for r in range(4)]
    assert unequal_collectives(made.run(*ranks)) == ""


def test_other_groups_are_named() -> None:
    ranks = [
        made.passing(
            r,
            counts=(
                *made.default_group(r, 0, 1, 2),
                *((GroupCount("7", (0, 2), 3 - r),) if r != 1 else ()),
            ),
        )
        for r in range(3)
    ]
    assert unequal_collectives(made.run(*ranks)) == (
        "unequal number of collectives on the default group: rank 0 issued 0, rank 1 issued 1, "
        "rank 2 issued 2; on group '7' of ranks 0, 2: rank 0 issued 3, rank 2 issued 1"
    )


def test_group_made_twice_counts_together() -> None:
    twice = made.default_group(1, 0, 1) * 2
    once = made.default_group(2, 0, 1)
    ranks = made.passing(0, counts=twice), made.passing(1, counts=once)
    assert unequal_collectives(made.run(*ranks)) == ""


def test_lost_ranks_do_not_count() -> None:
    ranks = [*counted(3, 3, 3)[:2], made.lost_in_call(2, returncode=-9)]
    assert unequal_collectives(made.run(*ranks)) == ""


def test_unequal_collectives_are_a_note_beside_a_failure() -> None:
    reports = merged(*counted(1, 2, calls=[FAILED, None]))
    assert verdict(call_of(reports)) == "rank 0: assert 1 == 2"
    assert "unequal number of collectives" in call_of(reports).longreprtext


def test_unequal_collectives_are_a_note_beside_a_failure_in_teardown() -> None:
    first, second = counted(1, 2)
    torn = {**first.reports, TEARDOWN: TimedReport(FAILED_TEARDOWN, 1.5)}
    reports = merged(replace(first, reports=torn), second)
    assert words(reports) == whole("passed", teardown="failed")
    assert verdict(reports[2]) == "rank 0: OSError: still open"
    assert "unequal number of collectives" in reports[2].longreprtext


def test_unequal_collectives_beside_a_disagreement_on_skipping() -> None:
    reports = merged(*counted(1, 2, calls=[SKIPPED, None]))
    assert verdict(call_of(reports)).startswith("ranks disagree")
    assert "unequal number of collectives" in call_of(reports).longreprtext


def test_unequal_collectives_before_a_skip() -> None:
    assert words(merged(*counted(1, 2, calls=[SKIPPED, SKIPPED]))) == whole("failed")
    skip = made.skipped("no GPU", SETUP)
    ranks = [made.leaving_setup(r, skip, counts=made.default_group(r, 0, 1)) for r in range(2)]
    assert words(merged(*ranks)) == without_call("failed")


@pytest.mark.parametrize("call", [XPASSED, STRICT, XFAILED])
def test_unequal_collectives_can_be_the_failure_that_was_expected(call: TestReport) -> None:
    reports = merged(*counted(1, 2, calls=[call, call]))
    assert words(reports) == whole("xfailed")
    assert call_of(reports).wasxfail == KNOWN
    assert "unequal number of collectives" in call_of(reports).longreprtext


def test_unequal_collectives_are_not_expected_by_some_ranks_only() -> None:
    assert words(merged(*counted(1, 2, calls=[XPASSED, None]))) == whole("failed")
    assert words(merged(*counted(1, 2, calls=[STRICT, None]))) == whole("failed")


def test_unequal_collectives_and_an_error_in_teardown_of_a_strict_success() -> None:
    ranks = counted(1, 2, calls=[STRICT, STRICT])
    torn = {**ranks[0].reports, TEARDOWN: TimedReport(FAILED_TEARDOWN, 1.5)}
    reports = merged(replace(ranks[0], reports=torn), ranks[1])
    assert words(reports) == whole("failed", teardown="failed")


# ------------------------------------------------------------------ other differences

MISMATCH = "ranks differ in all_reduce #2:\n  rank 0: sum\n  rank 1: max"


def test_other_difference_fails_the_test() -> None:
    reports = merged(made.passing(0), made.passing(1), mismatch=MISMATCH)
    assert words(reports) == whole("failed")
    assert verdict(call_of(reports)) == "ranks differ in all_reduce #2:"
    assert call_of(reports).longreprtext.startswith(MISMATCH)
    assert "ranks 0-1: passed" in call_of(reports).longreprtext


def test_other_difference_is_a_note_beside_unequal_numbers() -> None:
    reports = merged(*counted(1, 2), mismatch=MISMATCH)
    assert verdict(call_of(reports)).startswith("unequal number of collectives")
    assert MISMATCH in call_of(reports).longreprtext


def test_unlike_messages_fail_the_test_and_are_a_note_beside_collectives() -> None:
    unlike = "the ranks differ in message #1:\n  rank 0: send(4 x int32)"
    alone = merged(made.passing(0), made.passing(1), unlike_message=unlike)
    assert words(alone) == whole("failed")
    assert verdict(call_of(alone)) == "the ranks differ in message #1:"
    assert "gloo compares bytes alone" in call_of(alone).longreprtext
    beside = call_of(merged(*counted(1, 2), unlike_message=unlike))
    assert verdict(beside).startswith("unequal number of collectives")
    assert unlike in beside.longreprtext
    assert "gloo compares bytes alone" not in beside.longreprtext


def test_other_difference_without_a_rank() -> None:
    assert words(merged(mismatch=MISMATCH)) == without_call("failed")
