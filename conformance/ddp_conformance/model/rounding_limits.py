"""Limits that rounding sets, measured where a fixed one is exceeded; pure.

A branch such as a ReLU within rounding of 0, or arithmetic in 16 bits, moves what a right step
computes by more than any fixed limit that would still find wrong ones. How far, only the step
itself can show: one process makes it again, disturbed as rounding in another order could.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from ddp_conformance.framework.history import History, Record
from ddp_conformance.model.history import Decided, Gradients, Rounded, Statistics
from pytest_ddp.extensions.worlds.parity import FACTOR

What: TypeAlias = tuple[str, int, str]
"""Gradient, decision or statistic, the optimizer's call, and a name."""

Distances: TypeAlias = dict[tuple[int, What], float]
"""Distances by step."""


class RoundingLimits:
    """Absolute limits, zero where nothing was measured."""

    def __init__(self, history: History) -> None:
        self._limits: Distances = {}
        for seen in history:
            if isinstance(seen, Rounded):
                for place, name, distance in seen.gradients:
                    self._limits[seen.step, ("gradient", place, name)] = FACTOR * distance
                for kind, named in (
                    ("decision", seen.decisions),
                    ("statistic", seen.statistics),
                    ("update", seen.updates),
                ):
                    for name, distance in named:
                        self._limits[seen.step, (kind, 0, name)] = FACTOR * distance

    def of_gradient(self, step: int, place: int, name: str) -> float:
        """The limit for the gradients of an optimizer's call."""
        return self._limits.get((step, ("gradient", place, name)), 0.0)

    def of_decision(self, step: int, name: str) -> float:
        """The limit for what a step reports."""
        return self._limits.get((step, ("decision", 0, name)), 0.0)

    def of_statistic(self, step: int, name: str) -> float:
        """The limit for running statistics."""
        return self._limits.get((step, ("statistic", 0, name)), 0.0)

    def of_update(self, step: int, name: str) -> float:
        """The limit for a parameter after a step."""
        return self._limits.get((step, ("update", 0, name)), 0.0)


def measured(
    plain: Sequence[Record],
    further: Iterable[Sequence[Record]],
    updates: Iterable[tuple[int, str, float]] = (),
) -> Iterator[Rounded]:
    """The largest differences of further runs of one process from its plain one, by step.

    Args:
        plain: what the plain run recorded.
        further: what the others did.
        updates: differences of their parameters: after which step, name, distance.
    """
    largest: Distances = {}
    wanted = dict(_values(plain))
    for run in further:
        for what, values in dict(_values(run)).items():
            distance = _distance(values, wanted.get(what, ()))
            largest[what] = max(distance, largest.get(what, 0.0))
    for step, name, distance in updates:
        key = (step, ("update", 0, name))
        largest[key] = max(distance, largest.get(key, 0.0))
    steps: defaultdict[int, dict[What, float]] = defaultdict(dict)
    for (step, which), distance in largest.items():
        if distance:
            steps[step][which] = distance
    for step, found in sorted(steps.items()):
        yield Rounded(
            0,
            step,
            tuple((p, name, far) for (kind, p, name), far in found.items() if kind == "gradient"),
            tuple((name, far) for (kind, _, name), far in found.items() if kind == "decision"),
            tuple((name, far) for (kind, _, name), far in found.items() if kind == "statistic"),
            tuple((name, far) for (kind, _, name), far in found.items() if kind == "update"),
        )


def is_repeated(run: Sequence[Record], other: Sequence[Record]) -> bool:
    """Whether two runs have recorded the same, also where that is no number."""
    return repr(run) == repr(other)


def _values(run: Sequence[Record]) -> Iterator[tuple[tuple[int, What], Sequence[float]]]:
    calls: Counter[int] = Counter()
    for seen in run:
        if isinstance(seen, Gradients) and seen.taken != "in the end":
            calls[seen.step] += seen.taken != "in the step"
            for name, values in seen.values:
                yield (seen.step, ("gradient", calls[seen.step] - 1, name)), values
        elif isinstance(seen, Decided):
            for name, value in wanted_of(seen).items():
                yield (seen.step, ("decision", 0, name)), (value,)
        elif isinstance(seen, Statistics):
            for name, values in seen.values:
                yield (1, ("statistic", 0, name)), values


def wanted_of(alone: Decided) -> Mapping[str, float]:
    """The decisions of one process; its norm is observed, not reported."""
    wanted = dict(alone.decisions)
    if "norm" in wanted and alone.norm is not None:
        wanted["norm"] = alone.norm / wanted.get("scale", 1.0)
    return wanted


def _distance(values: Sequence[float], wanted: Sequence[float]) -> float:
    """Zero where one of both is no number: it says nothing of how far rounding goes."""
    if len(values) != len(wanted):
        return 0.0
    distances = (abs(value - right) for value, right in zip(values, wanted, strict=True))
    return max((far for far in distances if math.isfinite(far)), default=0.0)
