"""Judges of the metric guarantees: pure functions from what ranks saw to violations."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

from ddp_conformance.framework.history import Failed, History, Measured
from ddp_conformance.framework.verdict import Violation, ranks_in_words
from ddp_conformance.lockstep.same_calls import judge_same_calls
from ddp_conformance.metrics.history import Expected

SHOWN = 4
"""Values shown of a report."""


def judge_values(history: History, tolerance: float) -> tuple[Violation, ...]:
    """Every rank reports what a single process does, and all ranks exactly the same.

    ``tolerance`` is relative to the single process's value. Ranks that raised or whose
    collectives differ have no reports to compare; that is the violation then.
    """
    return judge_reporting(history) or _wrong_reports(history, tolerance)


def judge_alike(history: History) -> tuple[Violation, ...]:
    """All ranks report the same, right or wrong."""
    measured = [record for record in history if isinstance(record, Measured)]
    stages = dict.fromkeys(report.stage for report in measured)
    return judge_reporting(history) or tuple(
        violation
        for stage in stages
        for violation in _different(stage, [m for m in measured if m.stage == stage])
    )


def judge_reporting(history: History) -> tuple[Violation, ...]:
    """No rank raises, and all make the same collectives."""
    failures = tuple(
        Violation(f"rank {failure.rank} reports nothing: {failure.error}")
        for failure in history
        if isinstance(failure, Failed)
    )
    return failures or judge_same_calls(history)


def _wrong_reports(history: History, tolerance: float) -> tuple[Violation, ...]:
    expected = [record for record in history if isinstance(record, Expected)]
    measured = [record for record in history if isinstance(record, Measured)]
    if not expected or not measured:
        return (Violation("nothing was reported, or nothing to compare it with"),)
    known = {right.stage for right in expected}
    return (
        *(v for right in expected for v in _stage_of(history, right, tolerance)),
        *(
            Violation(f"{m.stage}: rank {m.rank} reports what a single process does not")
            for m in measured
            if m.stage not in known
        ),
    )


def _stage_of(history: History, right: Expected, tolerance: float) -> Iterator[Violation]:
    stage, expected = right.stage, right.values
    reports = [m for m in history if isinstance(m, Measured)]
    measured = [report for report in reports if report.stage == stage]
    for rank in sorted({m.rank for m in reports} - {m.rank for m in measured}):
        yield Violation(f"{stage}: rank {rank} made no report")
    for report in measured:
        text = _beside(report, expected, "a single process", tolerance)
        if text:
            yield Violation(text)
    yield from _different(stage, measured)


def _different(stage: str, measured: Sequence[Measured]) -> Iterator[Violation]:
    """Reports that are within the tolerance of the right one, but differ from each other."""
    ranks: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
    for report in measured:
        # Exact, and as readers write numbers.
        ranks[tuple(map(repr, report.values))].append(report.rank)
    if len(ranks) > 1:
        listed = "; ".join(
            f"{ranks_in_words(owners)}: {', '.join(values[:SHOWN]) or 'nothing'}"
            for values, owners in ranks.items()
        )
        yield Violation(f"{stage}: the ranks' reports differ: {listed}")


def _agree(got: Sequence[float], expected: Sequence[float], tolerance: float) -> bool:
    return len(got) == len(expected) and all(
        math.isclose(value, right, rel_tol=tolerance, abs_tol=tolerance)
        or (math.isnan(value) and math.isnan(right))
        for value, right in zip(got, expected, strict=True)
    )


def own_value(history: History, tolerance: float) -> tuple[float, ...]:
    """The value that a metric reports for its samples, if the ranks' shares do not matter.

    Empty if they matter, or if the ranks' reports differ: such a metric breaks MET-01 or MET-02,
    and a further report proves nothing.
    """
    measured = [record for record in history if isinstance(record, Measured)]
    stages = dict.fromkeys(report.stage for report in measured)
    equal = all(not [*_different(s, [m for m in measured if m.stage == s])] for s in stages)
    first = measured[0].values if measured else ()
    same = all(_agree(report.values, first, tolerance) for report in measured)
    return first if equal and same else ()


def judge_unharmed(
    history: History, own: Sequence[float], beside: str, tolerance: float
) -> tuple[Violation, ...]:
    """MET-04: all ranks report the metric's own value, if it has one: that of ``beside``."""
    measured = [record for record in history if isinstance(record, Measured)]
    stages = dict.fromkeys(report.stage for report in measured)
    return judge_reporting(history) or tuple(
        Violation(text)
        for stage in (stages if own else ())
        for reports in [[report for report in measured if report.stage == stage]]
        for text in (
            *(_beside(report, own, beside, tolerance) for report in reports),
            *(violation.what for violation in _different(stage, reports)),
        )
        if text
    )


def judge_unchanged(history: History, new: History, tolerance: float) -> tuple[Violation, ...]:
    """MET-05: each rank reports what a new metric reports there, right or wrong."""
    expected = {(m.rank, m.stage): m.values for m in new if isinstance(m, Measured)}
    measured = {(m.rank, m.stage): m for m in history if isinstance(m, Measured)}
    if not expected:
        return (Violation("nothing was reported"),)
    return judge_reporting(history) or tuple(
        Violation(text)
        for (rank, stage), values in expected.items()
        for report in [measured.get((rank, stage), Measured(rank, stage, ()))]
        if (text := _beside(report, values, "a new metric", tolerance))
    )


def _beside(report: Measured, right: Sequence[float], source: str, tolerance: float) -> str:
    """The text of a wrong report, with the right value and its source; empty if it is right."""
    if _agree(report.values, right, tolerance):
        return ""
    got = in_words(report.values)
    return f"{report.stage}: rank {report.rank} reports {got}, {source} {in_words(right)}"


def in_words(values: Sequence[float]) -> str:
    """The first few values, or ``nothing``."""
    shown = ", ".join(f"{value:.6g}" for value in values[:SHOWN])
    return f"{shown}, ..." if len(values) > SHOWN else shown or "nothing"
