"""Judges of the metric guarantees: pure functions from what ranks saw to violations."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from ddp_conformance.history import Collective, Expected, Failed, History, Measured
from ddp_conformance.verdict import Violation, ranks_in_words

SHOWN = 4
"""Values shown of a report."""


def judge_values(history: History, tolerance: float) -> tuple[Violation, ...]:
    """Every rank reports what a single process does, all of them to the same bit.

    ``tolerance`` is relative to the single process's value. Ranks that raised or whose
    collectives differ have no reports to compare; that is the violation then.
    """
    failures = tuple(
        Violation(f"rank {failure.rank} reports nothing: {failure.error}")
        for failure in history
        if isinstance(failure, Failed)
    )
    return failures or judge_same_calls(history) or _wrong_reports(history, tolerance)


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
        if not _agree(report.values, expected, tolerance):
            got = in_words(report.values)
            yield Violation(
                f"{stage}: rank {report.rank} reports {got}, a single process {in_words(expected)}"
            )
    yield from _different(stage, measured)


def _different(stage: str, measured: Sequence[Measured]) -> Iterator[Violation]:
    """Reports that are near enough to the right one, but not one and the same."""
    ranks: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
    for report in measured:
        ranks[tuple(value.hex() for value in report.values)].append(report.rank)
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


def in_words(values: Sequence[float]) -> str:
    """The first few values, or ``nothing``."""
    shown = ", ".join(f"{value:.6g}" for value in values[:SHOWN])
    return f"{shown}, ..." if len(values) > SHOWN else shown or "nothing"


def judge_same_calls(history: History) -> tuple[Violation, ...]:
    """All ranks make the same collectives in the same order; the first difference is told."""
    ranks = sorted({r.rank for r in history if isinstance(r, Collective | Measured)})
    by_rank = [[r for r in history if isinstance(r, Collective) and r.rank == k] for k in ranks]
    for number, calls in enumerate(zip_longest(*by_rank)):
        named = {rank: _call(call) for rank, call in zip(ranks, calls, strict=True)}
        if len({what for what, _ in named.values()}) > 1:
            listed = ", ".join(f"rank {rank} {what}{site}" for rank, (what, site) in named.items())
            return (Violation(f"collective {number}: {listed}"),)
    return ()


def _call(call: Collective | None) -> tuple[str, str]:
    """What a rank announced and the line it came from."""
    if call is None:
        return "nothing", ""
    return call.what, f" ({call.site})" if call.site else ""
