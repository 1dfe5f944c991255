"""Metrics of torcheval, which a function gathers and computes for all ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from ddp_conformance import Case, Metric, Subject

from conformance.ecosystem.frame.parts import Breach, Part, parametrize_with_parts
from conformance.ecosystem.frame.samples import (
    CLASSES,
    area,
    guess,
    labels,
    mean,
    right_share,
    sample_value,
    scores,
    squared_error,
)

if TYPE_CHECKING:
    from ddp_conformance.frontend.pytest_frontend import BoundCheck

metrics = pytest.importorskip("torcheval.metrics")
toolkit = pytest.importorskip("torcheval.metrics.toolkit")


def torcheval_mean(case: Case) -> Any:
    return metrics.Mean()


def torcheval_accuracy(case: Case) -> Any:
    return metrics.MulticlassAccuracy(num_classes=CLASSES)


def torcheval_auroc(case: Case) -> Any:
    return metrics.BinaryAUROC()


def torcheval_mse(case: Case) -> Any:
    return metrics.MeanSquaredError(multioutput="raw_values")


def pairs(indices: Sequence[int]) -> tuple[Any, Any]:
    """Two numbers for each sample: the second one is guessed without a fault."""
    right = torch.tensor([[sample_value(i), float(i)] for i in indices])
    said = torch.tensor([[guess(i), float(i)] for i in indices])
    return said, right


def squared_errors(indices: Sequence[int]) -> tuple[float, float]:
    return squared_error(indices), 0.0


def area_or_half(indices: Sequence[int]) -> float:
    return area(indices, undefined=0.5)


def part(
    make: Callable[[Case], Any],
    use: str,
    reference: Callable[[Sequence[int]], Any],
    *,
    linear: bool = True,
    **options: Any,
) -> Part:
    traits = frozenset() if linear else frozenset({"nonlinear"})
    metric = Metric(make, traits, reference=reference, compute=toolkit.sync_and_compute, **options)
    return Part(metric, f"`sync_and_compute({use})`")


PARTS = [
    replace(
        part(torcheval_mean, "Mean()", mean),
        breaches=[
            Breach(
                ("MET-01",),
                "each rank adds the others' sums to its own, so that with three ranks and more the "
                "last bit depends on the rank",
                "torcheval/mean_in_own_order.py",
            )
        ],
        world_sizes=(3,),  # two numbers have the same sum in either order
    ),
    part(torcheval_accuracy, "MulticlassAccuracy()", right_share, batch=labels),
    part(torcheval_auroc, "BinaryAUROC()", area_or_half, linear=False, batch=scores),
    replace(
        part(
            torcheval_mse,
            'MeanSquaredError(multioutput="raw_values")',
            squared_errors,
            batch=pairs,
        ),
        breaches=[
            Breach(
                ("MET-04",),
                "a rank without samples gathers one number, and the others one for each output",
                "torcheval/error_empty_rank.py",
            )
        ],
    ),
]


@parametrize_with_parts(PARTS)
def test_torcheval(subject: Subject, check: BoundCheck) -> None:
    check(subject)
