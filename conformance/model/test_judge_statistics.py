"""The judge of running statistics on hand-made histories, and its property."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ddp_conformance.framework.history import Record
from ddp_conformance.launched.history import Ended
from ddp_conformance.model.history import State, Statistics
from ddp_conformance.model.judge_statistics import judge_statistics
from hypothesis import given
from hypothesis import strategies as st

from conformance.strategies import quick

ALONE = Statistics(0, True, (("norm.running_mean", (0.5, -2.0)), ("norm.running_var", (1.0,))))
SEEN = [replace(ALONE, rank=rank, alone=False) for rank in (0, 1, 2)]


def texts(history: Sequence[Record]) -> list[str]:
    return [str(violation) for violation in judge_statistics(history, 1e-4)]


def holding(rank: int, mean: tuple[float, ...]) -> Statistics:
    return replace(SEEN[rank], values=(("norm.running_mean", mean), *ALONE.values[1:]))


def test_statistics_of_all_samples_pass() -> None:
    assert texts([ALONE, *SEEN]) == []
    assert texts([ALONE, SEEN[0], holding(1, (0.5001, -2.0001))]) == []


def test_the_first_that_differs_is_named() -> None:
    assert texts([ALONE, SEEN[0], holding(1, (0.6, -3.0)), SEEN[2]]) == [
        "step 1, rank 1: norm.running_mean has -3, of one process -2"
    ]


def test_one_that_is_missing_is_named() -> None:
    short = replace(SEEN[2], values=ALONE.values[1:])
    begun = State(2, "after wrapping", (), tuple((name, "a") for name, _ in ALONE.values))
    assert texts([begun, ALONE, *SEEN[:2], short]) == [
        "step 1, rank 2: norm.running_mean has 0 values, of one process 2"
    ]


def test_one_that_another_stage_has_is_not_missed() -> None:
    stages = [replace(SEEN[rank], values=ALONE.values[rank : rank + 1]) for rank in (0, 1)]
    assert texts([ALONE, *stages]) == []
    assert texts([ALONE, stages[0]]) == [
        "step 1, rank 0: norm.running_var has 0 values, of one process 1"
    ]


def test_a_model_without_statistics_is_no_pass() -> None:
    nothing = ["no running_mean or running_var was seen in the model"]
    assert texts([replace(seen, values=()) for seen in (ALONE, *SEEN)]) == nothing
    assert texts([Ended(0, 0, 0, True)]) == nothing


def test_a_run_that_broke_off_before_its_first_step_is_left_to_its_end() -> None:
    assert texts([]) == []


def test_without_the_single_process_nothing_is_found() -> None:
    assert texts(SEEN) == []


@quick
@given(st.integers(0, 2), st.integers(0, 1), st.sampled_from([-1.0, 0.001, 7.0, float("nan")]))
def test_any_other_value_is_named(rank: int, place: int, off: float) -> None:
    mean = [0.5, -2.0]
    mean[place] += off
    history = [ALONE, *SEEN[:rank], holding(rank, (mean[0], mean[1])), *SEEN[rank + 1 :]]
    (text,) = texts(history)
    assert text.startswith(f"step 1, rank {rank}: norm.running_mean has {mean[place]:.6g}, of ")
