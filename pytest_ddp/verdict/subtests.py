"""Merges the subtests of all ranks; they are reported before the call, as in pytest."""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

from pytest_ddp.asked.options import Output
from pytest_ddp.evidence.outcome import Ending, RankOutcome, RunOutcome, TimedReport
from pytest_ddp.verdict.entries import WIDTH
from pytest_ddp.verdict.merge import Merged, judge_call
from pytest_ddp.wire.kept import is_wordless
from pytest_ddp.wire.protocol import Phase

_Reported: TypeAlias = tuple[RankOutcome, TimedReport]


def with_subtests(
    outcome: RunOutcome, merged: Merged, output: Output, width: int = WIDTH
) -> Merged:
    """The reports of a test with those of its subtests, whose failures come first.

    Subtests of ranks are the same if they have the same message and parameters. A subtest that only
    some ranks have is no failure: ranks may test different things.
    """
    if not any(rank.subtests for rank in outcome.ranks):
        return merged
    judged = [_judge(outcome, same, output, width) for same in _same(outcome.ranks)]
    setup = list(itertools.takewhile(lambda report: report.when == "setup", merged.reports))
    reports = [report for each in judged for report in each.reports]
    diagnoses = [diagnosis for each in judged for diagnosis in each.diagnoses]
    return Merged(
        [*setup, *reports, *merged.reports[len(setup) :]], (*diagnoses, *merged.diagnoses)
    )


def _same(ranks: Iterable[RankOutcome]) -> Iterator[list[_Reported]]:
    """The subtests of all ranks, same ones together, in the order of the first rank with them."""
    found: dict[object, list[_Reported]] = {}
    for rank in ranks:
        times: Counter[object] = Counter()
        for timed in rank.subtests:
            name = _name(timed.report)
            found.setdefault((name, times[name]), []).append((rank, timed))
            times[name] += 1
    return iter(found.values())


def _name(report: Any) -> object:
    return report.context.msg, tuple(report.context.kwargs.items())


def _judge(outcome: RunOutcome, same: list[_Reported], output: Output, width: int) -> Merged:
    reports = [timed.report for _, timed in same]
    merged = copy.copy(reports[0])
    if all(map(is_wordless, reports)):
        merged.start = min(report.start for report in reports)
        merged.stop = max(report.stop for report in reports)
        merged.duration = max(report.duration for report in reports)
        return Merged([merged], ())
    judged = judge_call(_as_call(outcome, same), output, width)
    vars(merged).pop("wasxfail", None)
    # Keeps the class, by which pytest and its plugins recognise subtests.
    vars(merged).update(vars(judged.reports[0]))
    return Merged([merged], judged.diagnoses)


def _as_call(outcome: RunOutcome, same: list[_Reported]) -> RunOutcome:
    """A record in which this subtest is the call, with the ranks that have ended it."""
    by_rank = {rank.rank: timed for rank, timed in same}
    ranks = (
        RankOutcome(
            rank=rank.rank,
            ending=Ending.DONE,
            at=rank.at,
            reports=dict.fromkeys(Phase, by_rank[rank.rank]) if rank.rank in by_rank else {},
        )
        for rank in outcome.ranks
    )
    return RunOutcome(
        nodeid=outcome.nodeid,
        location=outcome.location,
        keywords=outcome.keywords,
        backend=outcome.backend,
        ranks=tuple(ranks),
        start=outcome.start,
        duration=outcome.duration,
    )
