"""What holds of the merged verdict whatever the ranks did."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from pytest_ddp.outcome.outcome import Ending, RankOutcome
from pytest_ddp.protocol.messages import Phase
from pytest_ddp.settings.options import Output
from pytest_ddp.verdict.merge import merge
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
    merged,
    verdict,
    whole,
    words,
)

SETUP, CALL, TEARDOWN = Phase


CALLS = [PASSED, FAILED, SKIPPED, made.skipped("other"), XFAILED, XPASSED, STRICT]
SETUPS = [
    made.report(SETUP),
    FAILED_SETUP,
    made.skipped("no GPU", SETUP),
    made.xfailed(KNOWN, SETUP),
]
TEARDOWNS = [made.report(TEARDOWN), FAILED_TEARDOWN]


def any_ending(draw: st.DrawFn) -> Ending:
    return draw(st.sampled_from([Ending.DONE] * 5 + list(Ending)))


@st.composite
def any_rank(draw: st.DrawFn) -> RankOutcome:
    setup = draw(st.sampled_from(SETUPS))
    reports = [setup]
    if setup.passed:
        reports.append(draw(st.sampled_from(CALLS)))
    reports.append(draw(st.sampled_from(TEARDOWNS)))
    ending = any_ending(draw)
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
    return not rank.ended_well or not wanted <= set(rank.reports)


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
    shown = words(merged(*ranks))
    if shown == whole("passed"):
        for rank in ranks:
            assert not incomplete(rank)
            assert all(timed.report.passed for timed in rank.reports.values())
        # Ranks that all ended as announced have sent no counts.
        assert len({rank.done.counts for rank in ranks if rank.done}) <= 1


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
