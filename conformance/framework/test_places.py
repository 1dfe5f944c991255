"""The place of a collective: the user's line, or else the class of the library that made it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ddp_conformance.callbacks.tracing import Trace, traced
from ddp_conformance.framework import places
from ddp_conformance.lockstep.lockstep import Lockstep, in_lockstep
from torch import nn
from torchmetrics import MeanMetric

from pytest_ddp import Ddp


class Mine(MeanMetric):
    """Nothing of it is on the stack when its state is gathered."""


@contextmanager
def rank_zero_first() -> Iterator[None]:
    dist.barrier()  # first
    yield
    dist.barrier()  # second


def as_a_check(function: Callable[[], object]) -> None:
    """Call it as a check does: what is further out is no evidence."""
    exec(compile("function()", places.BEGINNINGS[0], "exec"), {"function": function})


def sites_of(ddp: Ddp, function: Callable[[], object]) -> list[str]:
    lockstep, trace = Lockstep(ddp), Trace(ddp.rank)
    with warnings.catch_warnings(), in_lockstep(lockstep), traced(trace):
        warnings.simplefilter("ignore")  # a metric that computes without data says so
        as_a_check(function)
    heard = [call.site for call in lockstep.calls[:-1]]
    assert [call.site for call in trace.calls] == heard
    return heard


def line_of(text: str) -> str:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    (number,) = [number for number, line in enumerate(lines, 1) if line.endswith(text)]
    return f"{__file__}:{number}"


@pytest.mark.ddp(world_size=2)
def test_a_guard_of_the_standard_librarys_form_is_the_users(ddp: Ddp) -> None:
    def body() -> None:
        with rank_zero_first():
            pass

    assert sites_of(ddp, body) == [line_of("  # first"), line_of("  # second")]


@pytest.mark.ddp(world_size=2)
@pytest.mark.parametrize("metric", [MeanMetric, Mine])
def test_a_librarys_collective_has_the_class_it_was_made_for(ddp: Ddp, metric: Any) -> None:
    sites = sites_of(ddp, metric().compute)
    assert sites
    for site in sites:
        assert site.startswith(f"{metric.__name__}, torchmetrics/metric.py:"), site


@pytest.mark.ddp(world_size=2)
def test_what_torch_makes_alone_has_torchs_class(ddp: Ddp) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch compiles with torch.jit
        from torch.distributed.optim import ZeroRedundancyOptimizer
    optimizer = ZeroRedundancyOptimizer(nn.Linear(2, 2).parameters(), torch.optim.SGD, lr=0.1)
    sites = sites_of(ddp, optimizer.consolidate_state_dict)
    assert sites
    for site in sites:
        assert site.startswith("ZeroRedundancyOptimizer, torch/distributed/optim/zero_"), site


def test_a_users_folder_may_be_called_torch() -> None:
    assert places.is_training_library(torch.__file__)
    assert places.is_training_library(torch.optim.__file__)
    assert not places.is_training_library("/home/me/torch/train.py")
    assert not places.is_training_library("/home/me/lightning/ddp_conformance/checks/train.py")
    found = {}
    exec(compile("where = call_site()", "/home/me/torch/pytest_ddp/train.py", "exec"),
         {"call_site": places.call_site}, found)  # fmt: skip
    assert found["where"] == "/home/me/torch/pytest_ddp/train.py:1"
