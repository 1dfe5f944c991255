"""Sampler, partition and metrics of MONAI."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest
from ddp_conformance import Case, Metric, Sampler, Subject

from conformance.ecosystem.frame.parts import Breach, Part, parametrize_with_parts
from conformance.ecosystem.frame.samples import area, numbers, scores, squared_error

if TYPE_CHECKING:
    from ddp_conformance.frontend.pytest_frontend import BoundCheck

data = pytest.importorskip("monai.data")
metrics = pytest.importorskip("monai.metrics")


def monai_uneven_sampler(case: Case) -> Any:
    return data.DistributedSampler(
        case.dataset, even_divisible=False, num_replicas=case.world_size, rank=case.rank
    )


def monai_partition(case: Case, **options: Any) -> Any:
    indices = range(case.size)
    return data.partition_dataset(indices, num_partitions=case.world_size, **options)[case.rank]


def monai_padded_partition(case: Case) -> Any:
    return monai_partition(case, even_divisible=True)


def monai_mse(case: Case) -> Any:
    return metrics.MSEMetric()


def monai_auroc(case: Case) -> Any:
    return metrics.ROCAUCMetric()


def columns(indices: Sequence[int]) -> tuple[Any, ...]:
    """One number for each sample, and its channel."""
    return tuple(tensor[:, None] for tensor in numbers(indices))


def score_columns(indices: Sequence[int]) -> tuple[Any, ...]:
    return tuple(tensor[:, None] for tensor in scores(indices))


def feed(metric: Any, *arguments: Any) -> None:
    """MONAI's metrics are called."""
    metric(*arguments)


def aggregate(metric: Any) -> Any:
    """What other libraries call ``compute``."""
    return metric.aggregate()


EMPTY_RANK = Breach(
    ("MET-04",),
    "a rank without samples gathers nothing and raises, while the others wait for it",
    "monai/empty_rank.py",
)

PARTS = [
    Part(
        Sampler(monai_uneven_sampler, {"exact", "uneven", "shuffles", "evaluates"}, min_size=1),
        "`DistributedSampler(dataset, even_divisible=False)`",
    ),
    Part(
        Sampler(monai_padded_partition, {"pads"}, min_size=1),
        "`partition_dataset(data, num_partitions=world_size, even_divisible=True)[rank]`",
    ),
    Part(
        Sampler(monai_partition, {"exact", "uneven", "evaluates"}, min_size=1),
        "`partition_dataset(data, num_partitions=world_size)[rank]`",
    ),
    Part(
        Metric(monai_mse, batch=columns, reference=squared_error, update=feed, compute=aggregate),
        "`MSEMetric()`",
        [EMPTY_RANK],
    ),
    Part(
        Metric(
            monai_auroc,
            {"nonlinear"},
            batch=score_columns,
            reference=area,
            update=feed,
            compute=aggregate,
        ),
        "`ROCAUCMetric()`",
        [EMPTY_RANK],
    ),
]


@parametrize_with_parts(PARTS)
def test_monai(subject: Subject, check: BoundCheck) -> None:
    check(subject)
