"""Subtests of all ranks: alike ones are one, reported as pytest does before the call's report."""

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

_Told: TypeAlias = tuple[RankOutcome, TimedReport]


def with_subtests(
    outcome: RunOutcome, merged: Merged, output: Output, width: int = WIDTH
) -> Merged:
    """The reports of a test with those of its subtests, which speak first of what failed.

    Subtests of ranks are alike if they have the same message and parameters. One that only some
    ranks have is no failure: ranks may test what is theirs.
    """
    if not any(rank.subtests for rank in outcome.ranks):
        return merged
    judged = [_judge(outcome, told, output, width) for told in _alike(outcome.ranks)]
    setup = list(itertools.takewhile(lambda report: report.when == "setup", merged.reports))
    reports = [report for one in judged for report in one.reports]
    diagnoses = [diagnosis for one in judged for diagnosis in one.diagnoses]
    return Merged(
        [*setup, *reports, *merged.reports[len(setup) :]], (*diagnoses, *merged.diagnoses)
    )


def _alike(ranks: Iterable[RankOutcome]) -> Iterator[list[_Told]]:
    """The subtests of all ranks, in the order of the first rank that has them."""
    found: dict[object, list[_Told]] = {}
    for rank in ranks:
        times: Counter[object] = Counter()
        for timed in rank.subtests:
            name = _name(timed.report)
            found.setdefault((name, times[name]), []).append((rank, timed))
            times[name] += 1
    return iter(found.values())


def _name(report: Any) -> object:
    return report.context.msg, tuple(report.context.kwargs.items())


def _judge(outcome: RunOutcome, told: list[_Told], output: Output, width: int) -> Merged:
    reports = [timed.report for _, timed in told]
    merged = copy.copy(reports[0])
    if all(map(is_wordless, reports)):
        merged.start = min(report.start for report in reports)
        merged.stop = max(report.stop for report in reports)
        merged.duration = max(report.duration for report in reports)
        return Merged([merged], ())
    judged = judge_call(_as_call(outcome, told), output, width)
    vars(merged).pop("wasxfail", None)
    # Of the class that pytest and its plugins know subtests by.
    vars(merged).update(vars(judged.reports[0]))
    return Merged([merged], judged.diagnoses)


def _as_call(outcome: RunOutcome, told: list[_Told]) -> RunOutcome:
    """A test that is no more than this subtest, with all ranks that have ended it."""
    known = {rank.rank: timed for rank, timed in told}
    ranks = (
        RankOutcome(
            rank=rank.rank,
            ending=Ending.DONE,
            at=rank.at,
            reports=dict.fromkeys(Phase, known[rank.rank]) if rank.rank in known else {},
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
