"""Metrics of torchmetrics by family, against values that are worked out without it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torchmetrics
from ddp_conformance import Case, Metric, Subject

from conformance.ecosystem.frame.parts import Breach, Part, parametrize_with_parts
from conformance.ecosystem.frame.samples import (
    CLASSES,
    absolute_error,
    area,
    confusion,
    correlation,
    labels,
    largest,
    macro_f1,
    mean,
    numbers,
    right_share,
    root_squared_error,
    scores,
    smallest,
    squared_error,
    total,
    word_errors,
    words,
)

if TYPE_CHECKING:
    from ddp_conformance.frontend.pytest_frontend import BoundCheck

# ---------------------------------------------------------------- metrics


def torchmetrics_mean(case: Case) -> Any:
    return torchmetrics.MeanMetric()


def torchmetrics_sum(case: Case) -> Any:
    return torchmetrics.SumMetric()


def torchmetrics_max(case: Case) -> Any:
    return torchmetrics.MaxMetric()


def torchmetrics_min(case: Case) -> Any:
    return torchmetrics.MinMetric()


def torchmetrics_accuracy(case: Case) -> Any:
    return torchmetrics.Accuracy("multiclass", num_classes=CLASSES, average="micro")


def torchmetrics_f1(case: Case) -> Any:
    return torchmetrics.F1Score("multiclass", num_classes=CLASSES, average="macro")


def torchmetrics_confusion(case: Case) -> Any:
    return torchmetrics.ConfusionMatrix("multiclass", num_classes=CLASSES)


def torchmetrics_mse(case: Case) -> Any:
    return torchmetrics.MeanSquaredError()


def torchmetrics_rmse(case: Case) -> Any:
    return torchmetrics.MeanSquaredError(squared=False)


def torchmetrics_mae(case: Case) -> Any:
    return torchmetrics.MeanAbsoluteError()


def torchmetrics_pearson(case: Case) -> Any:
    return torchmetrics.PearsonCorrCoef()


def torchmetrics_auroc(case: Case) -> Any:
    return torchmetrics.AUROC("binary")


def torchmetrics_wer(case: Case) -> Any:
    return torchmetrics.text.WordErrorRate()


def part(
    make: Callable[[Case], Any],
    use: str,
    reference: Callable[[Sequence[int]], Any],
    *,
    batch: Callable[[Sequence[int]], tuple[Any, ...]] | None = None,
    linear: bool = False,
) -> Part:
    """A metric with what it is fed with, by default the samples' values alone."""
    traits = frozenset() if linear else frozenset({"nonlinear"})
    options: dict[str, Any] = {} if batch is None else {"batch": batch}
    return Part(Metric(make, traits, reference=reference, **options), f"`{use}`")


PARTS = [
    part(torchmetrics_mean, "MeanMetric()", mean, linear=True),
    part(torchmetrics_sum, "SumMetric()", total),
    part(torchmetrics_max, "MaxMetric()", largest),
    part(torchmetrics_min, "MinMetric()", smallest),
    part(
        torchmetrics_accuracy,
        'Accuracy("multiclass", average="micro")',
        right_share,
        batch=labels,
        linear=True,
    ),
    part(torchmetrics_f1, 'F1Score("multiclass", average="macro")', macro_f1, batch=labels),
    part(torchmetrics_confusion, 'ConfusionMatrix("multiclass")', confusion, batch=labels),
    part(torchmetrics_mse, "MeanSquaredError()", squared_error, batch=numbers, linear=True),
    part(torchmetrics_rmse, "MeanSquaredError(squared=False)", root_squared_error, batch=numbers),
    part(torchmetrics_mae, "MeanAbsoluteError()", absolute_error, batch=numbers, linear=True),
    part(torchmetrics_pearson, "PearsonCorrCoef()", correlation, batch=numbers),
    replace(
        part(torchmetrics_auroc, 'AUROC("binary")', area, batch=scores),
        breaches=[
            Breach(
                ("MET-04",),
                "a rank without samples gathers another type than the others",
                "torchmetrics/auroc_empty_rank.py",
                "torchmetrics#813",
            )
        ],
    ),
    part(torchmetrics_wer, "WordErrorRate()", word_errors, batch=words),
]


@parametrize_with_parts(PARTS, share_ranks=True)
def test_torchmetrics(subject: Subject, check: BoundCheck) -> None:
    check(subject)
