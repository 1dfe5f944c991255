"""The merged verdict: what it is for every mixture of ranks, and that it is honest."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from _pytest.reports import TestReport
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddp.merge import merge, unequal_collectives
from pytest_ddp.options import Output
from pytest_ddp.outcome import Ending, RankOutcome, TimedReport
from pytest_ddp.protocol import GroupCount, Phase
from tests.unit import handmade as made

SETUP, CALL, TEARDOWN = Phase


def merged(*ranks: RankOutcome, output: Output = Output.FAILED, **known: Any) -> list[TestReport]:
    return merge(made.run(*ranks, **known), output)


def words(reports: Sequence[TestReport]) -> dict[str, str]:
    """The outcome by phase, with xfailed and xpassed told apart."""
    told = {}
    for report in reports:
        word: str = report.outcome
        if hasattr(report, "wasxfail"):
            word = {"skipped": "xfailed", "passed": "xpassed"}[word]
        told[str(report.when)] = word
    return told


def whole(call: str, *, setup: str = "passed", teardown: str = "passed") -> dict[str, str]:
    return {"setup": setup, "call": call, "teardown": teardown}


def without_call(setup: str, *, teardown: str = "passed") -> dict[str, str]:
    return {"setup": setup, "teardown": teardown}


def verdict(report: TestReport) -> str:
    message: str = report.longrepr.reprcrash.message  # type: ignore[union-attr]
    return message


def call_of(reports: Sequence[TestReport]) -> TestReport:
    (found,) = [report for report in reports if report.when == "call"]
    return found


FAILED = made.failed("assert 1 == 2, 'assert 1 == 2'")
FAILED_SETUP = made.failed("raise OSError('no data')", SETUP)
FAILED_TEARDOWN = made.failed("raise OSError('still open')", TEARDOWN)

# ------------------------------------------------------------------ passed and failed


@pytest.mark.parametrize("size", [1, 2, 5])
def test_all_passed(size: int) -> None:
    reports = merged(*(made.passing(r) for r in range(size)))
    assert words(reports) == whole("passed")
    assert [report.longrepr for report in reports] == [None] * 3


@pytest.mark.parametrize("culprit", range(3))
def test_one_failed_in_call(culprit: int) -> None:
    ranks = [made.passing(r, FAILED if r == culprit else None) for r in range(3)]
    reports = merged(*ranks)
    assert words(reports) == whole("failed")
    assert verdict(call_of(reports)) == f"rank {culprit}: assert 1 == 2"


@pytest.mark.parametrize("culprit", range(3))
def test_one_failed_in_setup(culprit: int) -> None:
    ranks = [
        made.leaving_setup(r, FAILED_SETUP) if r == culprit else made.passing(r) for r in range(3)
    ]
    reports = merged(*ranks)
    assert words(reports) == without_call("failed")
    assert verdict(reports[0]) == f"rank {culprit}: OSError: no data"


@pytest.mark.parametrize("culprit", range(3))
def test_one_failed_in_teardown(culprit: int) -> None:
    ranks = [
        made.rank(r, made.report(SETUP), made.report(CALL), FAILED_TEARDOWN)
        if r == culprit
        else made.passing(r)
        for r in range(3)
    ]
    reports = merged(*ranks)
    assert words(reports) == whole("passed", teardown="failed")
    assert verdict(reports[2]) == f"rank {culprit}: OSError: still open"


def test_failed_in_call_and_in_teardown() -> None:
    both = made.rank(0, made.report(SETUP), FAILED, FAILED_TEARDOWN)
    reports = merged(both, made.passing(1))
    assert words(reports) == whole("failed", teardown="failed")
    assert "call had failed before: rank 0: assert 1 == 2" in reports[2].longreprtext


def test_failure_in_call_is_told_when_another_rank_failed_in_setup() -> None:
    """There is no call report that could tell it."""
    reports = merged(made.leaving_setup(0, FAILED_SETUP), made.passing(1, FAILED))
    assert words(reports) == without_call("failed")
    assert "OSError: no data" in reports[0].longreprtext
    assert "rank 1 failed in call" in reports[0].longreprtext


# ------------------------------------------------------------------ lost ranks

LOST = [
    {"ending": Ending.EXITED, "returncode": -11},
    {"ending": Ending.EXITED, "returncode": 3},
    {"ending": Ending.EXITED, "returncode": 0},
    {"ending": Ending.EXITED, "returncode": None},
    {"ending": Ending.STOPPED},
]
LOST_IDS = ["signal", "code 3", "code 0", "unknown", "stopped"]


@pytest.mark.parametrize("how", LOST, ids=LOST_IDS)
class TestLost:
    def test_in_setup(self, how: dict[str, Any]) -> None:
        assert words(merged(made.passing(0), made.rank(1, **how))) == without_call("failed")

    def test_in_call(self, how: dict[str, Any]) -> None:
        ranks = made.passing(0), made.rank(1, made.report(SETUP), **how)
        assert words(merged(*ranks)) == whole("failed")

    def test_in_teardown(self, how: dict[str, Any]) -> None:
        ranks = made.passing(0), made.rank(1, made.report(SETUP), made.report(CALL), **how)
        assert words(merged(*ranks)) == whole("passed", teardown="failed")

    def test_after_its_last_report(self, how: dict[str, Any]) -> None:
        ranks = made.passing(0), made.passing(1, **how)
        assert words(merged(*ranks)) == whole("passed", teardown="failed")

    def test_after_a_skip(self, how: dict[str, Any]) -> None:
        gone = made.rank(1, made.skipped("no GPU", SETUP), **how)
        kept = made.leaving_setup(0, made.skipped("no GPU", SETUP))
        assert words(merged(kept, gone)) == without_call("skipped", teardown="failed")

    def test_is_not_hidden_by_an_expected_failure(self, how: dict[str, Any]) -> None:
        ranks = made.passing(0, made.xfailed("known")), made.rank(1, made.report(SETUP), **how)
        reports = merged(*ranks)
        assert words(reports) == whole("failed")
        assert "rank 0: failed as expected (known)" in call_of(reports).longreprtext

    def test_every_rank(self, how: dict[str, Any]) -> None:
        assert words(merged(made.rank(0, **how), made.rank(1, **how))) == without_call("failed")


def test_not_begun() -> None:
    ranks = made.passing(0), made.rank(1, ending=Ending.NOT_BEGUN, problem="not collected")
    reports = merged(*ranks)
    assert words(reports) == without_call("failed")
    assert verdict(reports[0]) == "rank 1 could not begin: not collected"


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        ((), without_call("failed")),
        ((made.report(SETUP),), whole("failed")),
        ((made.report(SETUP), made.report(TEARDOWN)), whole("failed")),
        ((made.report(SETUP), made.report(CALL)), whole("passed", teardown="failed")),
        ((made.report(CALL), made.report(TEARDOWN)), without_call("failed")),
        ((FAILED_SETUP,), without_call("failed", teardown="failed")),
    ],
    ids=["all", "call and teardown", "call", "teardown", "setup", "teardown after setup"],
)
def test_living_rank_with_a_missing_report(
    reports: tuple[TestReport, ...], expected: dict[str, str]
) -> None:
    assert words(merged(made.passing(0), made.rank(1, *reports))) == expected


def test_no_rank_at_all() -> None:
    reports = merged(notes=("the host died",))
    assert words(reports) == without_call("failed")
    assert "the host died" in reports[0].longreprtext


# ------------------------------------------------------------------ skips


def test_all_skipped_in_call() -> None:
    reports = merged(*(made.passing(r, made.skipped("no GPU", line=12 + r)) for r in range(3)))
    assert words(reports) == whole("skipped")
    # -rs asserts a tuple; over JSON it came as a list.
    assert call_of(reports).longrepr == ("/src/test_made.py", 12, "Skipped: no GPU")


def test_all_skipped_in_setup() -> None:
    reports = merged(*(made.leaving_setup(r, made.skipped("no GPU", SETUP)) for r in range(3)))
    assert words(reports) == without_call("skipped")
    assert reports[0].longrepr == ("/src/test_made.py", 12, "Skipped: no GPU")


def test_all_skipped_some_in_setup_and_some_in_call() -> None:
    ranks = (
        made.leaving_setup(0, made.skipped("no GPU", SETUP)),
        made.passing(1, made.skipped("no GPU")),
    )
    assert words(merged(*ranks)) == whole("skipped")


def test_all_skipped_without_a_place() -> None:
    reports = merged(made.passing(0, made.report(CALL, "skipped", "odd")))
    assert call_of(reports).longrepr == ("tests/test_made.py", 10, "odd")


def test_skipped_for_different_reasons() -> None:
    reports = merged(*(made.passing(r, made.skipped(f"no shard {r // 2}")) for r in range(3)))
    assert words(reports) == whole("failed")
    assert verdict(call_of(reports)) == (
        "ranks disagree: ranks 0-1 skipped (no shard 0), rank 2 skipped (no shard 1)"
    )


@pytest.mark.parametrize("skipper", range(3))
def test_some_skipped(skipper: int) -> None:
    skip = made.skipped("no GPU", line=77)
    ranks = [made.passing(r, skip if r == skipper else None) for r in range(3)]
    reports = merged(*ranks)
    peers = {0: "ranks 1-2", 1: "ranks 0, 2", 2: "ranks 0-1"}[skipper]
    said = f"ranks disagree: rank {skipper} skipped (no GPU), {peers} passed"
    assert words(reports) == whole("failed")
    assert verdict(call_of(reports)) == said
    crash = call_of(reports).longrepr.reprcrash  # type: ignore[union-attr]
    assert (crash.path, crash.lineno) == ("/src/test_made.py", 77)


def test_some_skipped_in_setup() -> None:
    """The others went on to their call, and there the disagreement shows."""
    ranks = made.leaving_setup(0, made.skipped("no GPU", SETUP)), made.passing(1)
    reports = merged(*ranks)
    assert words(reports) == whole("failed")
    assert "rank 0 skipped (no GPU), rank 1 passed" in verdict(call_of(reports))


def test_some_skipped_in_teardown() -> None:
    skip = made.skipped("no GPU", TEARDOWN)
    ranks = made.rank(0, made.report(SETUP), made.report(CALL), skip), made.passing(1)
    assert words(merged(*ranks)) == whole("passed", teardown="failed")


@pytest.mark.parametrize("in_setup", [True, False])
def test_failure_beats_skip(in_setup: bool) -> None:
    skipping = (
        made.leaving_setup(0, made.skipped("no GPU", SETUP))
        if in_setup
        else made.passing(0, made.skipped("no GPU"))
    )
    reports = merged(skipping, made.passing(1, FAILED))
    assert words(reports) == whole("failed")
    assert verdict(call_of(reports)) == "rank 1: assert 1 == 2"
    assert "rank 0: skipped (no GPU)" in call_of(reports).longreprtext


def test_failure_in_setup_beats_skip_in_setup() -> None:
    ranks = (
        made.leaving_setup(0, made.skipped("no GPU", SETUP)),
        made.leaving_setup(1, FAILED_SETUP),
    )
    reports = merged(*ranks)
    assert words(reports) == without_call("failed")
    assert "rank 0: skipped (no GPU)" in reports[0].longreprtext


# ------------------------------------------------------------------ expected failures

KNOWN = "known bug"
PASSED = made.report(CALL)
XFAILED, XPASSED, STRICT = made.xfailed(KNOWN), made.xpassed(KNOWN), made.xpassed_strict(KNOWN)
SKIPPED = made.skipped("no GPU")


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ((XFAILED, XFAILED), "xfailed"),
        ((XPASSED, XPASSED), "xpassed"),
        ((STRICT, STRICT), "failed"),
        ((XFAILED, XPASSED), "xfailed"),
        ((XFAILED, STRICT), "xfailed"),
        ((XFAILED, PASSED), "xfailed"),
        ((XPASSED, PASSED), "xpassed"),
        ((STRICT, PASSED), "failed"),
        ((XFAILED, FAILED), "failed"),
        ((XPASSED, FAILED), "failed"),
        ((STRICT, FAILED), "failed"),
        ((XFAILED, STRICT, FAILED), "failed"),
        ((XFAILED, SKIPPED), "failed"),
        ((XPASSED, SKIPPED), "failed"),
        ((STRICT, SKIPPED), "failed"),
    ],
)
def test_expected_failures(calls: tuple[TestReport, ...], expected: str) -> None:
    for order in itertools.permutations(calls):
        reports = merged(*(made.passing(r, call) for r, call in enumerate(order)))
        assert words(reports) == whole(expected)
        if expected.startswith("x"):
            assert call_of(reports).wasxfail == KNOWN


def test_strict_success_of_all_is_shown_as_pytest_does() -> None:
    reports = merged(*(made.passing(r, STRICT) for r in range(3)))
    assert verdict(call_of(reports)) == "ranks 0-2: [XPASS(strict)] known bug"


def test_reasons_of_expected_failures_that_differ() -> None:
    calls = [made.xfailed("slow"), made.xfailed("wrong"), made.xfailed("slow")]
    reports = merged(*(made.passing(r, call) for r, call in enumerate(calls)))
    assert call_of(reports).wasxfail == "ranks 0, 2: slow; rank 1: wrong"


def test_expected_failure_keeps_its_traceback() -> None:
    """``--xfail-tb`` shows it."""
    report = call_of(merged(made.passing(0, XPASSED), made.passing(1, XFAILED)))
    assert "raise ValueError('as expected')" in report.longreprtext


def test_expected_failure_in_setup_of_all() -> None:
    reports = merged(*(made.leaving_setup(r, made.xfailed(KNOWN, SETUP)) for r in range(2)))
    assert words(reports) == without_call("xfailed")
    assert reports[0].wasxfail == KNOWN


@pytest.mark.parametrize(
    ("call", "expected"),
    [(PASSED, "xfailed"), (STRICT, "xfailed"), (FAILED, "failed"), (SKIPPED, "failed")],
)
def test_expected_failure_in_setup_of_some(call: TestReport, expected: str) -> None:
    ranks = made.leaving_setup(0, made.xfailed(KNOWN, SETUP)), made.passing(1, call)
    assert words(merged(*ranks)) == whole(expected)


def test_expected_failure_in_teardown() -> None:
    broken = made.xfailed(KNOWN, TEARDOWN)
    ranks = made.rank(0, made.report(SETUP), XPASSED, broken), made.passing(1, XPASSED)
    assert words(merged(*ranks)) == whole("xpassed", teardown="xfailed")


def test_unittest_s_unexpected_success() -> None:
    success = made.report(CALL, "failed", "Unexpected success")
    assert words(merged(made.passing(0, success), made.passing(1, XFAILED))) == whole("xfailed")
    assert words(merged(made.passing(0, success), made.passing(1, success))) == whole("failed")


# ------------------------------------------------------------------ collectives


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


def test_rank_that_does_not_know_a_group_issued_nothing_on_it() -> None:
    both = made.default_group(1, 0, 1)
    assert "rank 1 issued 0" in unequal_collectives(
        made.run(made.passing(0, counts=both), made.passing(1))
    )


def test_groups_are_told_by_name_and_members() -> None:
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


# ------------------------------------------------------------------ what a report carries


def test_identity_of_the_test() -> None:
    for report in merged(made.passing(0), made.passing(1)):
        assert report.nodeid == made.NODEID
        assert report.location == ("tests/test_made.py", 9, "test_made")
        assert report.keywords == {"test_made": 1, "ddp": 1}


def test_times_span_all_ranks() -> None:
    early = made.report(CALL, start=made.START + 1, duration=2.0)
    late = made.report(CALL, start=made.START + 1.5, duration=4.0)
    report = call_of(merged(made.passing(0, early), made.passing(1, late)))
    assert report.duration == 4.0
    assert (report.start, report.stop) == (made.START + 1, made.START + 5.5)


def test_times_of_a_lost_rank() -> None:
    """A hang lasted as long as the controller waited for it."""
    lost = made.lost_in_call(1, Ending.STOPPED, at=30.0)
    report = call_of(merged(made.passing(0), lost))
    assert report.duration == 29.5
    assert report.stop == made.START + 30.0


def test_times_without_any_report() -> None:
    setup, teardown = merged(made.rank(0, ending=Ending.EXITED, returncode=1, at=3.0))
    assert (setup.start, setup.stop, setup.duration) == (made.START, made.START + 3.0, 3.0)
    assert (teardown.start, teardown.stop, teardown.duration) == (
        made.START + 3.0,
        made.START + 3.0,
        0.0,
    )


def test_report_without_times_does_not_count() -> None:
    """A rank makes one of an interrupt, with start and stop at zero."""
    interrupted = made.failed("raise KeyboardInterrupt", start=0, duration=0)
    report = call_of(merged(made.passing(0, interrupted), made.passing(1)))
    assert report.start == made.START
    assert report.duration == 0.5


def test_user_properties_once() -> None:
    calls = [
        made.report(CALL, user_properties=[("loss", 0.5), ("sizes", [1, 2])]),
        made.report(CALL, user_properties=[("loss", 0.25), ("sizes", [1, 2])]),
    ]
    report = call_of(merged(*(made.passing(r, call) for r, call in enumerate(calls))))
    assert report.user_properties == [("loss", 0.5), ("sizes", [1, 2]), ("loss", 0.25)]


def test_attributes_of_users_hooks_are_kept() -> None:
    calls = [made.report(CALL, extras=["a"]), made.report(CALL, extras=["b"], extra_of_rank_1=1)]
    report = call_of(merged(*(made.passing(r, call) for r, call in enumerate(calls))))
    assert report.extras == ["a"]
    assert report.extra_of_rank_1 == 1


def test_expectation_of_one_rank_is_no_attribute_of_a_failure() -> None:
    report = call_of(merged(made.passing(0, XFAILED), made.passing(1, FAILED)))
    assert not hasattr(report, "wasxfail")


# ------------------------------------------------------------------ captured output


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
    assert merged(*ranks)[0].sections == [("Captured stdout call [rank 1]", "waiting\n")]


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


# ------------------------------------------------------------------ properties

CALLS = [PASSED, FAILED, SKIPPED, made.skipped("other"), XFAILED, XPASSED, STRICT]
SETUPS = [
    made.report(SETUP),
    FAILED_SETUP,
    made.skipped("no GPU", SETUP),
    made.xfailed(KNOWN, SETUP),
]
TEARDOWNS = [made.report(TEARDOWN), FAILED_TEARDOWN]


@st.composite
def any_rank(draw: st.DrawFn) -> RankOutcome:
    setup = draw(st.sampled_from(SETUPS))
    reports = [setup]
    if setup.passed:
        reports.append(draw(st.sampled_from(CALLS)))
    reports.append(draw(st.sampled_from(TEARDOWNS)))
    ending = draw(st.sampled_from([Ending.DONE] * 5 + list(Ending)))
    if draw(st.integers(0, 4)) == 0 or ending is Ending.NOT_BEGUN:
        reports = reports[: draw(st.integers(0, len(reports)))]
    returncode = draw(st.sampled_from([0, 1, -9, -11])) if ending is Ending.EXITED else None
    return made.rank(
        0,
        *reports,
        ending=ending,
        at=draw(st.floats(2, 9)),
        counts=made.default_group(draw(st.sampled_from([1, 1, 1, 2])), *range(4)),
        returncode=returncode,
    )


RANKS = st.lists(any_rank(), min_size=1, max_size=4).map(
    lambda ranks: [replace(rank, rank=number) for number, rank in enumerate(ranks)]
)


def incomplete(rank: RankOutcome) -> bool:
    wanted = {SETUP, TEARDOWN}
    if SETUP in rank.reports and rank.reports[SETUP].report.passed:
        wanted.add(CALL)
    return rank.ending is not Ending.DONE or not wanted <= set(rank.reports)


def any_failed(rank: RankOutcome) -> bool:
    """A failure that no expectation of another rank can excuse."""
    reports = [timed.report for timed in rank.reports.values()]
    return any(r.failed and "XPASS" not in str(r.longrepr) for r in reports)


@given(RANKS, st.sampled_from(Output))
def test_one_report_per_phase(ranks: list[RankOutcome], output: Output) -> None:
    reports = merged(*ranks, output=output)
    phases = [report.when for report in reports]
    assert phases == (["setup", "call", "teardown"] if reports[0].passed else ["setup", "teardown"])
    assert all(report.stop >= report.start and report.duration >= 0 for report in reports)


@given(RANKS)
def test_any_failure_fails_the_test(ranks: list[RankOutcome]) -> None:
    failing = any(incomplete(rank) or any_failed(rank) for rank in ranks)
    if failing:
        assert "failed" in words(merged(*ranks)).values()


@given(RANKS)
def test_passes_only_if_every_rank_did(ranks: list[RankOutcome]) -> None:
    told = words(merged(*ranks))
    if told == whole("passed"):
        for rank in ranks:
            assert not incomplete(rank)
            assert all(timed.report.passed for timed in rank.reports.values())
        assert len({rank.done.counts for rank in ranks if rank.done}) == 1


@given(RANKS)
def test_failures_have_a_verdict_and_a_text(ranks: list[RankOutcome]) -> None:
    for report in merged(*ranks):
        if report.failed:
            assert verdict(report)
            assert "\n" not in verdict(report)
            assert report.longreprtext


@given(RANKS, st.data())
def test_numbering_of_ranks_does_not_matter(ranks: list[RankOutcome], data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(ranks))))
    renumbered = [replace(rank, rank=number) for rank, number in zip(ranks, order, strict=True)]
    assert words(merged(*renumbered)) == words(merged(*ranks))


@given(RANKS, st.data())
def test_order_of_the_records_does_not_matter(
    ranks: list[RankOutcome], data: st.DataObject
) -> None:
    shuffled = data.draw(st.permutations(ranks))
    for one, other in zip(merged(*ranks), merged(*shuffled), strict=True):
        assert one.outcome == other.outcome
        assert one.longreprtext == other.longreprtext


@given(RANKS, any_rank())
def test_a_further_rank_never_heals(ranks: list[RankOutcome], more: RankOutcome) -> None:
    """Only a strict success is excused, by a rank that failed as expected."""
    added = [*ranks, replace(more, rank=len(ranks))]
    strict = any("XPASS" in str(t.report.longrepr) for r in ranks for t in r.reports.values())
    counts = {rank.done.counts for rank in ranks if rank.done}
    if "failed" in words(merged(*ranks)).values() and not strict and len(counts) == 1:
        assert "failed" in words(merged(*added)).values()


@given(RANKS)
def test_outcome_is_not_changed(ranks: list[RankOutcome]) -> None:
    outcome = made.run(*ranks)
    before = repr(outcome), [vars(t.report).copy() for r in ranks for t in r.reports.values()]
    merge(outcome, Output.ALL)
    after = repr(outcome), [vars(t.report).copy() for r in ranks for t in r.reports.values()]
    assert before == after
