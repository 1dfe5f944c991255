"""The merged verdict for every mixture of ranks: passed, failed, lost, skipped, expected."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from _pytest.reports import TestReport

from pytest_ddp.outcome.outcome import Ending
from pytest_ddp.protocol.messages import Phase
from tests.unit import handmade as made
from tests.unit.handmade import (
    FAILED,
    FAILED_SETUP,
    FAILED_TEARDOWN,
    KNOWN,
    PASSED,
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


def test_failure_in_call_is_reported_when_another_rank_failed_in_setup() -> None:
    """There is no call report that could show it."""
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
    assert call_of(reports).longreprtext.count("skipped") == 1


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
    """``--xfail-tb`` shows the traceback of an expected failure."""
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
