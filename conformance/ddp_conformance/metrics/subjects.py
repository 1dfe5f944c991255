"""Kinds of subjects that report a number: a metric, and a whole evaluation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ddp_conformance.framework.case import Case
from ddp_conformance.framework.subjects import Subject

EXTREME = 64.0
"""Value of sample 0, the first one that padding repeats."""


GOLDEN = (math.sqrt(5) - 1) / 2
"""Multiples of it are spread evenly between 0 and 1, without a pattern."""


def sample_value(index: int) -> float:
    """The value of a sample: irregular, so that no wrong weighting comes out right."""
    return EXTREME if index == 0 else (7 * index % 11) * 0.375 - 1.0


def value_batch(indices: Sequence[int]) -> tuple[Tensor, ...]:
    """The samples' values as a metric of one argument takes them: float32 [batch]."""
    return (torch.tensor([sample_value(index) for index in indices]),)


def rounded_value(index: int) -> float:
    """A value of the same sign, no larger, that leaves no sum exact, not even one in float64.

    The order in which ranks add up shows in the last bit; with :func:`sample_value` it cannot.
    """
    return sample_value(index) * math.exp(-24 * (index * GOLDEN % 1))


def rounded_batch(indices: Sequence[int]) -> tuple[Tensor, ...]:
    """A batch as from :func:`value_batch`, of :func:`rounded_value`."""
    return (torch.tensor([rounded_value(index) for index in indices]),)


def signed_batch(sign: int, indices: Sequence[int]) -> tuple[Tensor, ...]:
    """A batch as from :func:`value_batch`, with all values of one sign, 1 or -1, and none between
    -1 and 1.
    """
    return (torch.tensor([sign * (1 + abs(sample_value(index))) for index in indices]),)


def mean_value(indices: Sequence[int]) -> float:
    """The mean of the samples' values, in float64."""
    return sum(map(sample_value, indices)) / len(indices)


def mean_of_all(case: Case) -> float:
    """The mean of the values of all samples of a data set, in float64."""
    return mean_value(range(case.size))


def call_update(metric: Any, *arguments: Any) -> None:
    """``metric.update``, as in torchmetrics and torcheval."""
    metric.update(*arguments)


def call_compute(metric: Any) -> Any:
    """``metric.compute()``."""
    return metric.compute()


def call_reset(metric: Any) -> None:
    """``metric.reset()``."""
    metric.reset()


@dataclass(frozen=True)
class Metric(Subject):
    """Something that each rank feeds with its samples and that gives one value for all ranks.

    ``make(case)`` returns a new one for ``case.rank`` of ``case.world_size``.
    """

    kind: ClassVar[str] = "metric"

    batch: Callable[[Sequence[int]], tuple[Any, ...]] = value_batch
    """The arguments of ``update`` for the samples with these indices; ``indices`` is not empty.

    Ranks are compared to the last bit of what they report, so let sums be rounded: a metric that
    takes other arguments than the values of the default is compared with these alone.
    """
    reference: Callable[[Sequence[int]], Any] = mean_value
    """What a single process reports for these samples, in float64: a number, or several."""
    update: Callable[..., None] = call_update
    """Feeds the metric with a batch."""
    compute: Callable[[Any], Any] = call_compute
    """Gives the value; every rank calls it."""
    reset: Callable[[Any], None] = call_reset
    """Begins a new epoch."""
    tolerance: float = 1e-5
    """Relative, against the reference; between ranks there is none."""
    collectives: int | None = None
    """The most collectives in ``update``; with the trait ``states_collectives``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_collectives(self.collectives)


@dataclass(frozen=True)
class Evaluation(Subject):
    """A pass over a data set of ``case.size`` samples that ends in a report.

    ``make(case)`` returns a function without arguments that makes the pass on
    ``case.rank`` of ``case.world_size``, every rank calling it, and returns what it
    reports: a number, several, or a mapping by name.
    """

    kind: ClassVar[str] = "evaluation"

    reference: Callable[[Case], Any] = mean_of_all
    """What a single process reports, in float64; called on one rank, and must not communicate."""
    tolerance: float = 1e-5
    """Relative, against the reference; between ranks there is none."""


def values_of(report: Any) -> tuple[float, ...]:
    """A report as numbers; mappings in the order of their names, and nothing for None.

    Raises ``TypeError`` for what holds no numbers.
    """
    if report is None:
        return ()
    if isinstance(report, Tensor):
        return tuple(map(float, report.detach().reshape(-1).tolist()))
    if isinstance(report, Mapping):
        return tuple(value for name in sorted(report) for value in values_of(report[name]))
    if isinstance(report, list | tuple):
        return tuple(value for part in report for value in values_of(part))
    if hasattr(report, "__float__"):
        return (float(report),)
    raise TypeError(
        f"{report!r} is no report; return a number, a tensor or list of numbers, or a mapping "
        "from names to those"
    )
