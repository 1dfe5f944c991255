"""Samplers, evaluation and guard of MMEngine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest
from ddp_conformance import Case, Evaluation, Guard, Sampler, Subject
from ddp_conformance.metrics.subjects import sample_value

from conformance.ecosystem.frame.parts import Breach, Part, parametrize_with_parts

if TYPE_CHECKING:
    from ddp_conformance.frontend.pytest_frontend import BoundCheck

mmdataset = pytest.importorskip("mmengine.dataset")
mmdist = pytest.importorskip("mmengine.dist")
mmevaluator = pytest.importorskip("mmengine.evaluator")


def mmengine_sampler(case: Case) -> Any:
    return mmdataset.DefaultSampler(case.dataset, shuffle=True, seed=0)


def mmengine_uneven_sampler(case: Case) -> Any:
    return mmdataset.DefaultSampler(case.dataset, shuffle=True, seed=0, round_up=False)


class MeanValue(mmevaluator.BaseMetric):  # type: ignore[misc]
    """The mean over all samples."""

    def process(self, data_batch: Any, data_samples: Sequence[Any]) -> None:
        """Keep a value for each sample."""
        self.results += map(sample_value, data_samples)

    def compute_metrics(self, results: list[float]) -> dict[str, float]:
        """Compute the mean of all values, on rank 0."""
        return {"value": sum(results) / len(results)}


def mmengine_metric(case: Case) -> Callable[[], Any]:
    """The sampler repeats samples, and the metric gets their number without the repeated ones."""

    def evaluate() -> Any:
        metric = MeanValue(prefix="mean", collect_dir=str(case.directory / "parts"))
        metric.process(None, list(mmdataset.DefaultSampler(case.dataset, shuffle=False)))
        return metric.evaluate(case.size)

    return evaluate


def mmengine_master_only(case: Case) -> Callable[[Callable[[], object]], object]:
    def guard(action: Callable[[], object]) -> object:
        return mmdist.master_only(action)()

    return guard


PARTS = [
    Part(
        Sampler(mmengine_sampler, {"pads", "shuffles"}),
        "`DefaultSampler(dataset, shuffle=True, seed=0)`",
    ),
    Part(
        Sampler(mmengine_uneven_sampler, {"exact", "uneven", "shuffles"}),
        "`DefaultSampler(dataset, shuffle=True, seed=0, round_up=False)`",
    ),
    Part(Evaluation(mmengine_metric), "`BaseMetric.evaluate(size)` over a `DefaultSampler`"),
    Part(
        Guard(mmengine_master_only),
        "`@master_only`",
        [
            Breach(
                ("WRT-05",),
                "every rank is the main one before there is a process group",
                "mmengine/master_only.py",
            )
        ],
    ),
]


@parametrize_with_parts(PARTS)
def test_mmengine(subject: Subject, check: BoundCheck) -> None:
    check(subject)
