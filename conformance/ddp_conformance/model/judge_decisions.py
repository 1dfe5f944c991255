"""Judge of MOD-08: a pure function from what steps decided to violations."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator

from ddp_conformance.framework.history import History
from ddp_conformance.framework.verdict import Violation, ranks_in_words
from ddp_conformance.launched.endings import broke_off
from ddp_conformance.model.history import Decided
from ddp_conformance.model.judge import not_compared_from
from ddp_conformance.model.rounding_limits import RoundingLimits, wanted_of


def judge_decisions(
    history: History, tolerance: float, *, between_ranks: bool = False
) -> tuple[Violation, ...]:
    """All ranks decide the same in each step, and the same as one process with all samples.

    With ``between_ranks`` only the ranks are compared.
    """
    seen = [record for record in history if isinstance(record, Decided)]
    alone = {record.step: record for record in seen if record.alone}
    steps: defaultdict[int, list[Decided]] = defaultdict(list)
    for record in seen:
        if not record.alone:
            steps[record.step].append(record)
    limits = RoundingLimits(history)
    first = 0 if between_ranks else not_compared_from(history)
    if broke_off(history):  # the steps that one process would have made are not known
        first = min(first, max(alone, default=-1) + 1)
    if not any(record.decisions for made in steps.values() for record in made):
        return () if broke_off(history) else (Violation("no step reports a decision"),)
    found: list[Violation] = []
    for step, made in sorted(steps.items()):
        texts = [*_between_ranks(made)]
        if not texts and step < first:
            texts = [*_beside_one(made[0], alone.get(step), tolerance, limits)]
        found += [Violation(f"step {step}: {text}") for text in texts]
    return tuple(found)


def _between_ranks(made: list[Decided]) -> Iterator[str]:
    owners: defaultdict[bool, list[int]] = defaultdict(list)
    for record in made:
        owners[record.stepped].append(record.rank)
    if len(owners) > 1:
        skipping, stepping = map(ranks_in_words, (owners[False], owners[True]))
        yield f"skipped by {skipping} and not by {stepping}"
    names = dict.fromkeys(name for record in made for name, _ in record.decisions)
    for name in names:
        # By their text, in which all NaNs are equal.
        values: defaultdict[str, list[int]] = defaultdict(list)
        for record in made:
            values[_exactly(dict(record.decisions).get(name))].append(record.rank)
        if len(values) > 1:
            sides = (f"{value} on {ranks_in_words(ranks)}" for value, ranks in values.items())
            yield f"{name} is {' and '.join(sides)}"


def _exactly(value: float | None) -> str:
    return "nothing" if value is None else repr(value)


def _beside_one(
    found: Decided, alone: Decided | None, tolerance: float, limits: RoundingLimits
) -> Iterator[str]:
    """Decisions that differ from one process's."""
    if alone is None:
        yield "one process with all samples makes no such step"
        return
    if found.stepped != alone.stepped:
        yield f"skipped by {'one process' if found.stepped else 'all ranks'} alone"
    wanted = wanted_of(alone)
    for name in dict.fromkeys([*dict(found.decisions), *wanted]):
        value, right = dict(found.decisions).get(name), wanted.get(name)
        limit = limits.of_decision(found.step, name)
        if not _close(value, right, tolerance, limit):
            text = f"{name} is {_roughly(value)}, of one process {_roughly(right)}"
            reported = dict(alone.decisions).get(name)
            if reported != right and _close(value, reported, tolerance, limit):
                text += (
                    ", which reports it as the ranks do: are gradients divided after the last "
                    "backward pass, by what is not in the reported 'scale'?"
                )
            yield text


def _close(value: float | None, right: float | None, tolerance: float, limit: float) -> bool:
    if value is None or right is None:
        return value is right
    if math.isfinite(value) and math.isfinite(right):
        return math.isclose(value, right, rel_tol=tolerance, abs_tol=max(limit, 1e-7))
    # A sum over ranks may make a NaN of an infinite gradient.
    return math.isfinite(value) == math.isfinite(right)


def _roughly(value: float | None) -> str:
    return "nothing" if value is None else f"{value:.6g}"
