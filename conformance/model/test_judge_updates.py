"""The judge of optimizers' updates on hand-made histories, and its property."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from ddp_conformance.framework.history import Record
from ddp_conformance.launched.history import Ended
from ddp_conformance.model.history import (
    Gradients,
    OneProcessEnds,
    Rounded,
    State,
    Tied,
    Updated,
    UpdateUnknown,
)
from ddp_conformance.model.judge import WRAPPING, after_step
from ddp_conformance.model.judge_updates import judge_updates, update_unknown
from ddp_conformance.model.taking_over import Followed, farthest_beyond_unit
from hypothesis import given
from hypothesis import strategies as st

from conformance.strategies import quick

UNIT = 2.0**-23
SAME = Updated(0, 1, ())
OFF = Updated(0, 1, (("weight", 1.5, 1.25, UNIT),))


def texts(history: Sequence[Record]) -> list[str]:
    return [str(violation) for violation in judge_updates(history)]


def test_what_one_process_makes_too_passes() -> None:
    assert texts([SAME]) == []
    assert update_unknown([SAME]) == ""


def test_another_update_is_named() -> None:
    assert texts([SAME, OFF]) == [
        "step 1: weight is 1.5 after it, and 1.25 if one process's optimizer steps with the same "
        "gradients"
    ]


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_what_is_no_number_is_named(wrong: float) -> None:
    assert texts([replace(OFF, differing=(("weight", wrong, 1.25, UNIT),))])
    assert texts([replace(OFF, differing=(("weight", 1.25, wrong, UNIT),))])


def test_what_rounding_moves_as_far_passes() -> None:
    rounded = Rounded(0, 1, (), (), (), (("weight", 0.0625),))
    assert texts([OFF, rounded]) == []
    assert texts([OFF, replace(rounded, updates=(("weight", 0.06),))])
    assert texts([OFF, replace(rounded, updates=(("bias", 0.0625),))])
    assert texts([OFF, replace(rounded, step=2)])


def test_what_cannot_be_repeated_is_not_judged() -> None:
    why = UpdateUnknown(1, 1, "steps without an optimizer")
    assert texts([OFF, why]) == []
    assert update_unknown([OFF, why]) == "steps without an optimizer"
    assert texts([OFF, replace(why, step=2)])
    assert update_unknown([SAME, OneProcessEnds(0, 2)]).startswith("has an optimizer whose state")
    assert update_unknown([]) == "makes no optimizer step"
    assert update_unknown([Ended(0, 0, 1, False)]) == ""


# ------------------------------------------------------------------ between ranks

BEGUN = [State(rank, WRAPPING, (("weight", "a"),)) for rank in (0, 1, 2)]
STEPPED = [Gradients(rank, 1, False, (("weight", (1.0, 2.0)),)) for rank in (0, 1, 2)]
MADE = [State(rank, after_step(1), (("weight", "b"),)) for rank in (0, 1, 2)]
OTHER = replace(MADE[2], parameters=(("weight", "x"),))
NAMED = ["step 1: ranks 0 and 2 make another weight of the same one, with the same gradients"]


def test_a_rank_that_makes_something_else_of_the_same_is_named() -> None:
    assert texts([*BEGUN, *STEPPED, *MADE]) == []
    assert texts([*BEGUN, *STEPPED, *MADE[:2], OTHER]) == NAMED


def test_ranks_that_have_drifted_apart_are_not_compared() -> None:
    apart = replace(BEGUN[2], parameters=(("weight", "x"),))
    assert texts([*BEGUN[:2], apart, *STEPPED, *MADE[:2], OTHER]) == []
    unlike = replace(STEPPED[2], values=(("weight", (1.0, 2.5)),))
    assert texts([*BEGUN, *STEPPED[:2], unlike, *MADE[:2], OTHER]) == []


def test_what_other_ranks_lack_is_not_compared() -> None:
    expert = replace(OTHER, parameters=(("weight", "b"), ("expert", "x")))
    assert texts([*BEGUN, *STEPPED, *MADE[:2], expert]) == []


def test_a_tied_parameter_is_one() -> None:
    stage = [
        replace(BEGUN[2], parameters=(("head", "a"),)),
        replace(STEPPED[2], values=(("head", (1.0, 2.0)),)),
        replace(OTHER, parameters=(("head", "x"),)),
    ]
    history = [*BEGUN[:2], *STEPPED[:2], *MADE[:2], *stage]
    assert texts(history) == []
    assert texts([*history, Tied(0, ("weight", "head"))]) == NAMED


@quick
@given(st.integers(2, 5), st.integers(1, 4), st.data())
def test_any_other_parameter_of_any_rank_is_named(
    world_size: int, steps: int, data: st.DataObject
) -> None:
    history: list[Record] = []
    for rank in range(world_size):
        history.append(replace(BEGUN[0], rank=rank))
        for step in range(1, steps + 1):
            history.append(replace(STEPPED[0], rank=rank, step=step))
            history.append(State(rank, after_step(step), (("weight", f"{step}"),)))
    assert texts(history) == []
    rank, step = data.draw(st.integers(0, world_size - 1)), data.draw(st.integers(1, steps))
    place = history.index(State(rank, after_step(step), (("weight", f"{step}"),)))
    history[place] = State(rank, after_step(step), (("weight", "x"),))
    found = texts(data.draw(st.permutations(history)))
    assert found
    assert all(text.startswith(f"step {step}: ranks 0 and ") for text in found)


# ------------------------------------------------------------------ units


def beyond(found: float, wanted: float, before: float) -> bool:
    tensors = (torch.tensor([1.0, value]) for value in (found, wanted, before))
    return farthest_beyond_unit(*tensors) is not None


def test_one_unit_of_the_parameter_or_of_the_update_is_allowed() -> None:
    assert not beyond(1.0 + UNIT, 1.0, 1.0)
    assert beyond(1.0 + 2 * UNIT, 1.0, 1.0)
    assert not beyond(0.25 + UNIT, 0.25, 1.3)
    assert beyond(0.25 + UNIT, 0.25, 0.3)
    assert not beyond(-4.0 - 4 * UNIT, -4.0, 0.0)
    assert beyond(1e-40, 0.0, 0.0)


def test_numbers_that_are_none_are_alike() -> None:
    assert not beyond(math.nan, math.nan, 1.0)
    assert beyond(math.nan, 1.0, 1.0)
    assert not beyond(math.inf, math.inf, 1.0)
    assert beyond(math.inf, 1.0, 1.0)


def test_the_element_that_is_farthest_off_is_given() -> None:
    wanted = torch.tensor([1.0, 2.0, 3.0])
    found = farthest_beyond_unit(wanted + torch.tensor([1e-3, 0.5, UNIT]), wanted, wanted)
    assert found == (2.5, 2.0, 2 * UNIT)
    narrow = torch.tensor([1.0], dtype=torch.bfloat16)
    assert farthest_beyond_unit(narrow + 2.0**-7, narrow, narrow) is None
    assert farthest_beyond_unit(narrow + 2.0**-6, narrow, narrow) == (1.015625, 1.0, 2.0**-7)


# ------------------------------------------------------------------ which calls belong together


def test_a_call_takes_the_gradients_of_the_same_optimizer() -> None:
    """Hooks may call one process's optimizers in another order; else the place decides."""
    a, b = frozenset({"a"}), frozenset({"b"})
    kept = Followed([], owned={(1, 0): a, (1, 1): b, (2, 0): a, (2, 1): a})
    assert kept.call_like((1, 0), b, []) == (1, 1)
    assert kept.call_like((1, 1), a, [(1, 1)]) == (1, 0)
    assert [kept.call_like((2, place), a, []) for place in (0, 1)] == [(2, 0), (2, 1)]
    assert kept.call_like((1, 0), a | b, []) == (1, 0)
