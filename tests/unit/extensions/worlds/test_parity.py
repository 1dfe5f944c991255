"""The judge of worlds, on hand-made tables."""

from __future__ import annotations

import math

import pytest

from pytest_ddp.extensions.worlds import parity
from pytest_ddp.extensions.worlds.parity import Comparison, Verdict
from pytest_ddp.extensions.worlds.ranks.world_records import (
    Deviation,
    RankTable,
    TensorPlace,
    WorldRun,
)

EPS = 2.0**-23
WEIGHT = TensorPlace("gradients", 0, "weight")


def table(error: float, largest: float = 1.0) -> dict[TensorPlace, Deviation]:
    return {WEIGHT: Deviation(error, largest, EPS)}


@pytest.mark.parametrize(
    ("error", "further", "is_beyond"),
    [
        (0.0, [], False),
        (64 * EPS, [], False),
        (65 * EPS, [], True),
        (400 * EPS, [10 * EPS, 100 * EPS], False),
        (401 * EPS, [10 * EPS, 100 * EPS], True),
        (65 * EPS, [math.inf], True),  # a run without a finite value is no evidence
        (math.inf, [1.0], True),
    ],
)
def test_the_limit_is_four_times_rounding_or_64_eps(
    error: float, further: list[float], is_beyond: bool
) -> None:
    found = parity.compare(table(error), [table(one) for one in further])
    assert bool(parity.beyond(found)) is is_beyond


def test_more_runs_are_no_new_limit_but_what_they_reach_is_rounding() -> None:
    [found] = parity.beyond(parity.compare(table(1.0), [table(0.2)]))
    assert parity.is_reached(found, [table(0.3), table(1.0)])
    assert not parity.is_reached(found, [table(0.3), table(0.9), table(math.inf)])


def test_a_tensor_of_zeros_allows_nothing() -> None:
    assert not parity.beyond(parity.compare(table(0.0, 0.0), ()))
    assert parity.beyond(parity.compare(table(1e-30, 0.0), ()))


@pytest.mark.parametrize(
    ("error", "wide", "is_rounding"),
    [
        (1e-4, Deviation(4e-10, 1.0, 2e-16), True),
        (1e-4, Deviation(1e-4, 1.0, 2e-16), False),
        (1e-10, Deviation(1e-10, 1e-10, 2e-16), False),  # small, and does not shrink
        (1e3, Deviation(1e-7, 1e4, 2e-16), True),  # relative to large values
    ],
)
def test_a_difference_is_rounding_if_it_shrinks_in_float64(
    error: float, wide: Deviation, is_rounding: bool
) -> None:
    found = Comparison(WEIGHT, Deviation(error, wide.largest, EPS), 0.0)
    assert parity.is_rounding_in_float64(found, wide) is is_rounding


def test_what_outlives_a_run_differs_between_runs_with_rounding_as_well() -> None:
    again = parity.compare(table(1e-3), [table(2e-3), table(3e-3)])
    assert parity.beyond(again) == []
    assert parity.unrepeated(again) == again
    natural = parity.compare(table(1e-5), [table(1e-3)])
    assert parity.unrepeated(natural) == []


def test_a_text_names_the_worst_tensor_and_shows_the_others() -> None:
    names = [f"layer{n}" for n in range(10)]
    errors = {
        TensorPlace("gradients", 1, name): Deviation(0.1 * n, 1.0, EPS)
        for n, name in enumerate(names)
    }
    found = parity.compare(errors, [dict.fromkeys(errors, Deviation(0.05, 1.0, EPS))])
    wrong = parity.beyond(found)
    wide = dict.fromkeys(errors, Deviation(0.9, 1.0, EPS))
    more = [dict.fromkeys(errors, Deviation(0.2, 1.0, EPS))] * 10
    verdict = Verdict(tuple(found), tuple(wrong), wide, "", ("drop (Dropout)",), True, more)
    [(name, number, text)] = parity.texts(verdict, "tp", "one")
    assert (name, number) == ("gradients", 1)
    lines = text.splitlines()
    assert lines[0] == "gradients (call 2): layer9 in world tp is not that of world one"
    assert "it differs by 0.9, 18 times what rounding does there (0.05);" in text
    assert "10 more runs, half of them with four times that rounding, reach 0.2\n" in text
    assert "in float64 it stays: 0.9" in text
    assert "7 of 10 tensors are beyond the limit, a ratio of 4:" in text
    assert "and 2 more with smaller ratios" in text
    assert lines[-1].endswith("drop (Dropout)")
    assert max(map(len, lines)) <= 100


def test_records_survive_json() -> None:
    run = WorldRun("a", "tp", "one", "/folder", failures=[("x", 1, "text")])
    assert WorldRun.from_json({**run.as_json(), "failures": [["x", 1, "text"]]}) == run
    ranks = RankTable(table(1.0), {("gradients", 0): 3}, ["drop"], ["torch.float32"], ["cpu"])
    assert RankTable.from_json(ranks.as_json()) == ranks
