"""Train steps that one process cannot judge, and the way out that the text names."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ddp_conformance import Case, TrainStep
from ddp_conformance.framework.registry import checks_for
from ddp_conformance.framework.verdict import UndecidedError
from ddp_conformance.model.mutants.seldom import (
    REASON,
    STATISTICS,
    normalises_by_rank,
    reduces_by_hand_and_clears,
    stepping,
)
from ddp_conformance.model.mutants.step_mutants import FEATURES, wrapped


def drops_out(case: Case) -> Any:
    """Dropout draws other numbers on each rank."""
    layers = torch.nn.Linear(FEATURES, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1)
    model = wrapped(case, torch.nn.Sequential(*layers))
    return model, stepping(case, model)


@pytest.mark.ddp(world_size=2)
@pytest.mark.parametrize(
    ("make", "text"),
    [
        (normalises_by_rank, "samples in 1, .*'batch_statistics' and reason="),
        (reduces_by_hand_and_clears, "its gradients are gone when step\\(\\) returns"),
        (drops_out, "has dropout in 1, .*: use p=0 here"),
    ],
    ids=["BatchNorm", "by-hand", "dropout"],
)
def test_what_cannot_be_compared_is_undecided(make: Any, text: str) -> None:
    subject = TrainStep(make)
    (check,) = [check for check in checks_for(subject) if check.id == "MOD-02"]
    with pytest.raises(UndecidedError, match=text):
        check(subject)


@pytest.mark.parametrize(("traits", "reason"), [(STATISTICS, " "), (frozenset(), REASON)])
def test_batch_statistics_need_a_reason(traits: frozenset[str], reason: str) -> None:
    with pytest.raises(ValueError, match="'batch_statistics' and reason= need each other"):
        TrainStep(normalises_by_rank, traits, reason=reason)


def test_one_step_is_too_few() -> None:
    with pytest.raises(ValueError, match="normalises_by_rank: steps= is at least 2"):
        TrainStep(normalises_by_rank, steps=1)


def test_batch_statistics_take_a_subject_out_of_one_guarantee() -> None:
    subject = TrainStep(normalises_by_rank, STATISTICS, reason=REASON)
    excused = [c.id for c in checks_for(subject) if c.excused & subject.traits]
    assert excused == ["MOD-02"]
