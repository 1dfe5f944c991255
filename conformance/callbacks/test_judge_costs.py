"""Histories of steps that make as many collectives as are stated, and more."""

from __future__ import annotations

import pytest
from ddp_conformance import Callback, Metric
from ddp_conformance.callbacks.history import StepCost
from ddp_conformance.callbacks.judge import judge_costs
from ddp_conformance.callbacks.mutants.costs import PoolsAtTheEnd, keeps_losses


def costs(*numbers: int, rank: int = 0) -> list[StepCost]:
    return [
        StepCost(rank, step, ("allreduce SUM float32[] (log.py:7)",) * number)
        for step, number in enumerate(numbers)
    ]


def test_as_many_as_are_stated() -> None:
    assert judge_costs(costs(9, 1, 0, 1), 1) == ()


def test_more_than_are_stated() -> None:
    found = judge_costs([*costs(0, 1, 2), *costs(0, 1, 2, rank=1)], 1)
    call = "allreduce SUM float32[] (log.py:7)"
    assert [str(one) for one in found] == [
        f"step 2, rank 0: 2 collectives, 1 stated: {call}, {call}"
    ]


def test_of_many_the_last_ones_are_listed() -> None:
    (violation,) = judge_costs(costs(0, 5), 4)
    call = "allreduce SUM float32[] (log.py:7)"
    assert str(violation).endswith(f"5 collectives, 4 stated: 2 more, {call}, {call}, {call}")


def test_one_step_is_too_few() -> None:
    assert [str(one) for one in judge_costs(costs(0), 0)] == ["no rank made a second step"]


@pytest.mark.parametrize(("kind", "make"), [(Callback, keeps_losses), (Metric, PoolsAtTheEnd)])
def test_a_number_and_its_trait_need_each_other(kind: type, make: object) -> None:
    stated = {"states_collectives"}
    with pytest.raises(ValueError, match="'states_collectives' and collectives= need each other"):
        kind(make, stated)
    with pytest.raises(ValueError, match="need each other"):
        kind(make, collectives=0)
    with pytest.raises(ValueError, match="collectives=-1: give 0 or more"):
        kind(make, stated, collectives=-1)
