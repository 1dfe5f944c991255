"""MOD-10 and the parts that other guarantees of models are tried on: none is accused wrongly."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from ddp_conformance import Case, TrainStep
from ddp_conformance.framework.mutants import all_benign_variants
from ddp_conformance.framework.registry import all_checks
from ddp_conformance.framework.verdict import GuaranteeError, UndecidedError
from ddp_conformance.model.mutants.gradient_reductions import ONCE, averages_by_rank_one, once
from ddp_conformance.model.mutants.sharded import states_without_reduction
from ddp_conformance.model.mutants.step_mutants import (
    branching,
    goes_past_wrapper,
    reduces_too_early,
    wrapped,
)
from ddp_conformance.model.mutants.unusual_optimizers import sparse_gradients

(MOD_10,) = [check for check in all_checks() if check.id == "MOD-10"]


def in_bfloat16(case: Case) -> Any:
    """No code fits into its seven bits."""
    model = wrapped(case, torch.nn.Linear(3, 1, dtype=torch.bfloat16))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(number: int) -> None:
        optimizer.zero_grad()
        model(torch.ones(2, 3, dtype=torch.bfloat16)).sum().backward()
        optimizer.step()

    return model, step


_MODULES = "tensor_parallel", "narrow", "vocabularies"
SHARED = tuple(f"ddp_conformance.model.mutants.{name}" for name in _MODULES)
"""Modules of mutants whose ranks share their samples: what all have is not reduced."""

LEGAL = [
    once(averages_by_rank_one),
    *(
        replace(variant.subject, traits=variant.subject.traits | ONCE)
        for variant in all_benign_variants()
        if isinstance(variant.subject, TrainStep)
        and not variant.subject.traits & {"reduces_once", "gpu"}
        and 2 in variant.world_sizes
        and variant.subject.make.__module__ not in SHARED
        and variant.subject.make is not sparse_gradients  # undecided: no code fits into them
    ),
]


@pytest.mark.parametrize("subject", LEGAL, ids=lambda subject: subject.name)
@pytest.mark.ddp(world_size=2)
def test_right_steps_reduce_once(subject: TrainStep) -> None:
    MOD_10(subject)


@pytest.mark.parametrize(
    "make", [goes_past_wrapper, reduces_too_early, branching, states_without_reduction]
)
@pytest.mark.ddp(world_size=2)
def test_an_element_that_nothing_reduces_is_named(make: Any) -> None:
    with pytest.raises(GuaranteeError) as caught:
        MOD_10(once(make))
    flat = " ".join(str(caught.value).split())
    assert re.search(r"are not reduced: rank . steps with what is 0 on", flat), flat


@pytest.mark.ddp(world_size=2)
def test_without_codes_there_is_no_verdict() -> None:
    with pytest.raises(UndecidedError, match="no gradient that a code could stand in for"):
        MOD_10(once(in_bfloat16))
