"""The judge of resumed runs: to the last bit, but for a DDP of three ranks or more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from ddp_conformance.determinism.history import (
    LoopParameters,
    LoopStep,
    RebuildsBuckets,
    Sketch,
)
from ddp_conformance.determinism.judge import REORDERED, judge_resumption
from ddp_conformance.framework.history import Record
from hypothesis import given, settings
from hypothesis import strategies as st

RESUMED = "mid-epoch"


def run(name: str, world_size: int, *, rebuilds: bool = False, off: float = 0.0) -> list[Record]:
    """Two steps of each rank, and final parameters that are off by this part of their norm."""
    sketch = Sketch("weight", "bits" if off == 0.0 else "other bits", 2.0, -1.5 + 2.0 * off)
    history: list[Record] = []
    for rank in range(world_size):
        history += [RebuildsBuckets(rank, name)] if rebuilds else []
        history += [LoopStep(rank, name, epoch, (rank, 9), ()) for epoch in (0, 1)]
        history.append(LoopParameters(rank, name, "end", (sketch,)))
    return history


def texts(history: Sequence[Record]) -> list[str]:
    return [str(violation) for violation in judge_resumption(history, RESUMED)]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("rebuilds", [False, True])
def test_equal_bits_pass(world_size: int, rebuilds: bool) -> None:
    whole = run("whole", world_size, rebuilds=rebuilds)
    assert texts([*whole, *run(RESUMED, world_size, rebuilds=rebuilds)]) == []


@pytest.mark.parametrize(("world_size", "rebuilds"), [(1, True), (2, True), (3, False), (4, False)])
def test_one_other_bit_is_named(world_size: int, rebuilds: bool) -> None:
    history = run("whole", world_size, rebuilds=rebuilds)
    history += run(RESUMED, world_size, rebuilds=rebuilds, off=1e-9)
    assert texts(history) == [
        f"{RESUMED}: rank {rank} ends with another weight" for rank in range(world_size)
    ]


@pytest.mark.parametrize("world_size", [3, 4])
def test_another_order_of_a_sum_passes_and_no_more(world_size: int) -> None:
    whole = run("whole", world_size, rebuilds=True)
    assert texts([*whole, *run(RESUMED, world_size, rebuilds=True, off=0.9 * REORDERED)]) == []
    far = run(RESUMED, world_size, rebuilds=True, off=1.2 * REORDERED)
    assert len(texts([*whole, *far])) == world_size


def test_the_allowance_is_narrow() -> None:
    assert REORDERED <= 1e-5


offs = st.floats(1e-12, 1e-2) | st.just(0.0)


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 6), st.booleans(), st.booleans(), offs)
def test_what_is_off_passes_in_that_one_case_alone(
    world_size: int, rebuilt_before: bool, rebuilt_after: bool, off: float
) -> None:
    history = run("whole", world_size, rebuilds=rebuilt_before)
    history += run(RESUMED, world_size, rebuilds=rebuilt_after, off=off)
    allowed = REORDERED if world_size > 2 and (rebuilt_before or rebuilt_after) else 0.0
    if not 0.99 * allowed < off < 1.01 * allowed:
        assert len(texts(history)) == (0 if off <= allowed else world_size)


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 6), st.booleans(), st.data())
def test_any_other_sample_is_named_whatever_the_parameters(
    world_size: int, rebuilds: bool, data: st.DataObject
) -> None:
    resumed = run(RESUMED, world_size, rebuilds=rebuilds)
    steps = [place for place, record in enumerate(resumed) if isinstance(record, LoopStep)]
    place = data.draw(st.sampled_from(steps))
    step = resumed[place]
    assert isinstance(step, LoopStep)
    deed = data.draw(st.sampled_from(["lost", "repeated", "other"]))
    if deed == "lost":
        del resumed[place]
    elif deed == "repeated":
        resumed.insert(place, step)
    else:
        resumed[place] = replace(step, ids=(99,))
    history = [*run("whole", world_size, rebuilds=rebuilds), *resumed]
    (text,) = texts(history)
    assert text.startswith(f"{RESUMED}: rank {step.rank}, step ")
