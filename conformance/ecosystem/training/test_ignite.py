"""Sampler, loader and metrics of ignite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest
import torch
from ddp_conformance import Case, Loader, Metric, SamplerWrapper, Subject
from ddp_conformance.metrics.subjects import mean_value, sample_value
from torch.utils.data import Sampler as TorchSampler

from conformance.ecosystem.frame.parts import Breach, Part, parametrize_with_parts

if TYPE_CHECKING:
    from ddp_conformance.frontend.pytest_frontend import BoundCheck

idist = pytest.importorskip("ignite.distributed")
metrics = pytest.importorskip("ignite.metrics")


def ignite_auto_dataloader(case: Case) -> Any:
    return idist.auto_dataloader(case.dataset, batch_size=2 * case.world_size, shuffle=True)


def ignite_proxy_sampler(case: Case, sampler: TorchSampler[Any]) -> Any:
    return idist.auto.DistributedProxySampler(sampler, case.world_size, case.rank)


def ignite_average(case: Case) -> Any:
    return metrics.Average()


def ignite_rmse(case: Case) -> Any:
    return metrics.RootMeanSquaredError()


def rows(indices: Sequence[int]) -> tuple[Any, ...]:
    """Two numbers for each sample."""
    return (torch.tensor([[sample_value(index), index] for index in indices]),)


def means(indices: Sequence[int]) -> tuple[float, float]:
    return mean_value(indices), sum(indices) / len(indices)


def pairs(indices: Sequence[int]) -> tuple[Any, ...]:
    right = torch.tensor([[sample_value(index)] for index in indices])
    return ((right + torch.tensor([[index % 3] for index in indices]), right),)


def root_squared_error(indices: Sequence[int]) -> float:
    return float((sum((index % 3) ** 2 for index in indices) / len(indices)) ** 0.5)


PARTS = [
    Part(
        Loader(ignite_auto_dataloader, {"pads", "shuffles"}),
        "`idist.auto_dataloader(dataset, shuffle=True)`",
    ),
    Part(
        SamplerWrapper(ignite_proxy_sampler, {"pads"}),
        "`DistributedProxySampler(sampler)`, which `auto_dataloader` puts around a sampler",
        [
            Breach(
                ("SMP-06",),
                "it seeds torch alone: samplers that draw from other generators differ on ranks",
                "ignite/proxy_sampler.py",
            )
        ],
    ),
    Part(
        Metric(ignite_average, batch=rows, reference=means),
        "`Average()` of two numbers for each sample",
        [
            Breach(
                ("MET-04",),
                "a rank without samples reduces one number, and the others two",
                "ignite/average_empty_rank.py",
            )
        ],
    ),
    Part(
        Metric(ignite_rmse, {"nonlinear"}, batch=pairs, reference=root_squared_error),
        "`RootMeanSquaredError()`",
    ),
]


@parametrize_with_parts(PARTS)
def test_ignite(subject: Subject, check: BoundCheck) -> None:
    check(subject)
