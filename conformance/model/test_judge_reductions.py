"""Histories in which gradients are reduced once, twice or not at all; and codes in buffers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ddp_conformance.model.coding import MOST, codes, elements_of
from ddp_conformance.model.history import Coded, Reduced, SteppedWith
from ddp_conformance.model.judge_reductions import is_coded, judge_reductions
from hypothesis import given
from hypothesis import strategies as st

from conformance.strategies import quick

ALL = (0, 1, 2, 3)


def reduced(*elements: int, members: tuple[int, ...] = ALL, place: int = 0, step: int = 1) -> Any:
    return Reduced(0, step, members, (("weight", elements),), place, f"train.py:{place}")


def texts(*history: Any) -> list[str]:
    return [str(violation) for violation in judge_reductions(history)]


@pytest.mark.parametrize(
    "history",
    [
        (),
        (reduced(0, 1, 2),),
        (reduced(0, 1), reduced(2, 3)),
        (reduced(0, 1), reduced(0, 1, step=2)),
        (reduced(0, 1, members=(0, 1)), reduced(0, 1, members=(0, 2))),
        (reduced(0, 1, members=(0,)), reduced(0, 1)),
        (
            reduced(0, 1),
            Reduced(0, 1, ALL, (("bias", (0, 1)),), 0, ""),
        ),
    ],
    ids=["nothing", "once", "ranges", "steps", "two groups", "alone", "parameters"],
)
def test_once_is_legal(history: Any) -> None:
    assert texts(*history) == []


def test_twice_is_not() -> None:
    (text,) = texts(reduced(0, 1, 2), reduced(2, 3, members=(0, 3), place=1))
    assert text == (
        "step 1, rank 0: 1 element of the gradient of weight is reduced in or after "
        "backward pass 1 (train.py:0) and again in or after backward pass 2 (train.py:1)"
    )
    assert len(texts(*[reduced(0, 1)] * 3)) == 2


def stepped(**ranks: str) -> list[Any]:
    """Rank 0 has the codes and steps with elements 0 to 2; the others with what they have."""
    found: list[Any] = []
    for rank, name in enumerate(("zero", "one", "two")):
        if name in ranks:
            incoming = (("weight", ranks.get(f"{name}_incoming", f"own {rank}")),)
            found.append(Coded(rank, 1, rank == 0, incoming))
            has = (0, 1, 2) if ranks[name] == "all" else tuple(map(int, ranks[name]))
            found.append(SteppedWith(rank, 1, (("weight", has),)))
    return found


def test_what_every_rank_steps_with_is_reduced() -> None:
    assert texts(*stepped(zero="all", one="all", two="all")) == []
    assert texts(*stepped(zero="", one="", two="all")) == []  # a top-k hook left them out
    assert texts(*stepped(zero="all", one="", one_incoming="own 0")) == []  # reduced before
    assert texts(*stepped(zero="all"), SteppedWith(1, 1, (("bias", ()),))) == []  # of another one


def test_what_one_rank_alone_steps_with_is_not() -> None:
    (text,) = texts(*stepped(zero="all", one="", two="12"))
    assert text == (
        "step 1: 3 elements of the gradient of weight are not reduced: rank 0 steps with what "
        "is 0 on ranks 1 and 2"
    )


def test_codes_need_a_gradient() -> None:
    assert is_coded(stepped(zero="all"))
    assert not is_coded([Coded(0, 1, True, ())])


# ------------------------------------------------------------------ codes

FACTORS = st.builds(
    lambda twos, threes: 2.0**twos * 3.0**threes, st.integers(-20, 20), st.integers(-2, 2)
)


@quick
@given(
    first=st.integers(0, MOST - 64),
    number=st.integers(2, 64),
    factor=FACTORS,
    sign=st.sampled_from((1, -1)),
    before=st.lists(st.sampled_from((0.0, 1.0, 0.3, float("inf"), float("nan"))), max_size=4),
)
def test_codes_are_found_in_any_buffer(
    first: int, number: int, factor: float, sign: int, before: list[float]
) -> None:
    values = (codes(first, number) * factor * sign).float()
    buffer = torch.cat([torch.tensor(before), values, torch.zeros(3)])
    assert elements_of(buffer) == list(range(first, first + number))


@quick
@given(st.integers(0, 10**6))
def test_other_numbers_are_none(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    assert elements_of(torch.randn(512, generator=generator)) == []


def test_a_lone_value_is_none() -> None:
    assert elements_of(codes(5, 1)) == []
    assert elements_of(torch.stack([codes(0, 9)[place] for place in (0, 4, 2)])) == []
    assert elements_of(torch.zeros(0)) == []


def test_means_of_three_ranks_are_found_again() -> None:
    values = codes(100, 50).float()
    for _ in range(2):
        values = values / 3
        assert elements_of(values) == list(range(100, 150))
        values = values + values + values


def test_half_of_the_bits_is_not_followed() -> None:
    assert elements_of(codes(3, 8).half().float()) == []


def test_elements_beyond_the_last_code_have_none() -> None:
    values = codes(MOST - 2, 4)
    assert values.tolist()[2:] == [0, 0]
    assert elements_of(values) == [MOST - 2, MOST - 1]
