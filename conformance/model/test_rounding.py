"""Limits that rounding sets: how they are measured, and what they are for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from ddp_conformance import TrainStep
from ddp_conformance.framework.history import Record
from ddp_conformance.framework.registry import all_checks
from ddp_conformance.framework.verdict import GuaranteeError
from ddp_conformance.model.history import Decided, Gradients, Rounded, Statistics
from ddp_conformance.model.judge import judge_gradients
from ddp_conformance.model.judge_decisions import judge_decisions
from ddp_conformance.model.judge_statistics import judge_statistics
from ddp_conformance.model.mutants.narrow import at_the_kink, in_autocast
from ddp_conformance.model.rounding_limits import is_repeated, measured

(MOD_02,) = [check for check in all_checks() if check.id == "MOD-02"]

GRADIENTS = Gradients(0, 1, True, (("weight", (1.0, -4.0)), ("bias", ())))
DECIDED = Decided(0, 1, True, True, (("norm", 99.0), ("scale", 2.0)), norm=8.0)
KEPT = Statistics(0, True, (("mean", (1.0,)),))
PLAIN: Sequence[Record] = (GRADIENTS, DECIDED, KEPT)
ROUNDED = Rounded(0, 1, ((0, "weight", 0.5),), (("norm", 0.5),), (("mean", 0.25),))


def moved(weight: float, norm: float, mean: float) -> Sequence[Record]:
    return (
        replace(GRADIENTS, values=(("weight", (1.0, weight)), ("bias", ()))),
        replace(DECIDED, norm=norm),
        replace(KEPT, values=(("mean", (mean,)),)),
    )


def test_the_largest_difference_of_further_runs_counts() -> None:
    further = [moved(-4.25, 8.0, 1.0), moved(-3.5, 9.0, 0.75), PLAIN]
    assert [*measured(PLAIN, further)] == [ROUNDED]
    assert [*measured(PLAIN, [PLAIN, PLAIN])] == []


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_what_is_no_number_is_not_measured(wrong: float) -> None:
    assert [*measured(PLAIN, [moved(wrong, wrong, wrong)])] == []


def test_optimizers_of_a_step_are_measured_one_by_one() -> None:
    second = replace(GRADIENTS, values=(("weight", (1.0, -3.0)), ("bias", ())))
    assert [*measured([GRADIENTS, GRADIENTS], [[GRADIENTS, second]])] == [
        Rounded(0, 1, ((1, "weight", 1.0),), (), ())
    ]


def test_four_times_the_difference_is_allowed() -> None:
    for weight, allowed in ((-2.0, True), (-1.9, False)):
        ranks = replace(GRADIENTS, alone=False, values=(("weight", (1.0, weight)), ("bias", ())))
        assert judge_gradients([GRADIENTS, ranks], 1e-4) != ()
        assert (judge_gradients([GRADIENTS, ranks, ROUNDED], 1e-4) == ()) == allowed
    for norm, allowed in ((6.0, True), (6.1, False)):
        decided = replace(DECIDED, alone=False, decisions=(("norm", norm), ("scale", 2.0)))
        assert judge_decisions([DECIDED, decided], 1e-4) != ()
        assert (judge_decisions([DECIDED, decided, ROUNDED], 1e-4) == ()) == allowed
    for mean, allowed in ((2.0, True), (2.1, False)):
        kept = replace(KEPT, alone=False, values=(("mean", (mean,)),))
        assert judge_statistics([KEPT, kept], 1e-4) != ()
        assert (judge_statistics([KEPT, kept, ROUNDED], 1e-4) == ()) == allowed


def test_a_limit_is_that_of_its_step_and_optimizer() -> None:
    far = (("weight", (1.0, -3.0)), ("bias", ()))
    for other in (replace(ROUNDED, step=2), replace(ROUNDED, gradients=((1, "weight", 0.5),))):
        ranks = replace(GRADIENTS, alone=False, values=far)
        assert judge_gradients([GRADIENTS, ranks, other], 1e-4) != ()


@pytest.mark.ddp(world_size=2)
@pytest.mark.parametrize("make", [in_autocast, at_the_kink])
def test_a_tolerance_that_is_stated_is_the_limit(make: Any) -> None:
    with pytest.raises(GuaranteeError, match="MOD-02 is broken by"):
        MOD_02(TrainStep(make, tolerance=1e-4))
    MOD_02(TrainStep(make))


def test_a_run_repeats_another_also_where_it_has_no_number() -> None:
    run = [replace(GRADIENTS, values=(("weight", (float("nan"),)),)), replace(GRADIENTS, step=2)]
    again = [replace(GRADIENTS, values=(("weight", (float("nan"),)),)), replace(GRADIENTS, step=2)]
    assert is_repeated(run, again)
    assert not is_repeated(run, [run[0], GRADIENTS])


def test_what_a_subclass_makes_in_its_step_is_measured_in_place_of_what_it_got() -> None:
    got = replace(GRADIENTS, values=(("weight", (8.0,)),))
    made = replace(got, values=(("weight", (1.0,)),), taken="in the step")
    moved = replace(made, values=(("weight", (1.5,)),))
    (rounded,) = measured([got, made], [[got, moved]])
    assert rounded.gradients == ((0, "weight", 0.5),)
