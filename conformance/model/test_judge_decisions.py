"""The judge of what steps decide on hand-made histories, and its property."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ddp_conformance.launched.history import Ended
from ddp_conformance.model.history import Decided
from ddp_conformance.model.judge_decisions import judge_decisions
from hypothesis import given, settings
from hypothesis import strategies as st

MADE = Decided(0, 1, alone=False, stepped=True, decisions=(("scale", 8.0), ("norm", 2.0)))
ALONE = replace(MADE, alone=True, norm=16.0)
EQUAL = [ALONE, MADE, replace(MADE, rank=1), replace(MADE, rank=2)]


def texts(history: Sequence[Decided]) -> list[str]:
    return [str(violation) for violation in judge_decisions(history, 1e-4)]


def telling(decided: Decided, **changes: float) -> Decided:
    return replace(decided, decisions=tuple({**dict(decided.decisions), **changes}.items()))


def test_equal_decisions_pass_and_the_norm_is_that_before_scaling() -> None:
    assert texts(EQUAL) == []
    assert texts([replace(ALONE, norm=16.0001), *EQUAL[1:]]) == []


def test_ranks_that_differ_are_named_to_the_last_bit() -> None:
    nearly = telling(EQUAL[2], norm=math.nextafter(2.0, 3.0))
    assert texts([*EQUAL[:2], nearly, EQUAL[3]]) == [
        "step 1: norm is 2.0 on ranks 0 and 2 and 2.0000000000000004 on rank 1"
    ]
    silent = replace(EQUAL[2], decisions=(("norm", 2.0),))
    assert texts([*EQUAL[:2], silent]) == [
        "step 1: scale is 8.0 on rank 0 and nothing on rank 1",
    ]


def test_a_step_that_some_skip_is_named() -> None:
    skipped = replace(EQUAL[3], stepped=False)
    assert texts([*EQUAL[:3], skipped]) == ["step 1: skipped by rank 2 and not by ranks 0 and 1"]


def test_a_step_that_one_process_does_not_skip_is_named() -> None:
    skipped = [replace(made, stepped=False) for made in EQUAL[1:]]
    assert texts([ALONE, *skipped]) == ["step 1: skipped by all ranks alone"]
    assert texts([replace(ALONE, stepped=False), *EQUAL[1:]]) == [
        "step 1: skipped by one process alone"
    ]


def test_a_wrong_norm_is_named_though_all_agree_on_it() -> None:
    wrong = [telling(made, norm=3.0) for made in EQUAL[1:]]
    assert texts([ALONE, *wrong]) == ["step 1: norm is 3, of one process 2"]


def test_the_norm_that_one_process_reports_is_no_evidence() -> None:
    assert texts([telling(ALONE, norm=99.0), *EQUAL[1:]]) == []


def test_numbers_that_are_none_are_alike() -> None:
    none = [telling(made, norm=math.nan) for made in EQUAL[1:]]
    assert texts([replace(ALONE, norm=math.inf), *none]) == []
    assert texts([ALONE, *none]) == ["step 1: norm is nan, of one process 2"]


def test_a_step_without_a_backward_pass_has_no_norm() -> None:
    silent = [
        replace(made, stepped=False, decisions=(("scale", 8.0),), norm=None) for made in EQUAL
    ]
    assert texts(silent) == []
    assert texts([silent[0], *(replace(made, stepped=False) for made in EQUAL[1:])]) == [
        "step 1: norm is 2, of one process nothing"
    ]


def test_a_run_that_broke_off_is_left_to_its_end() -> None:
    off = Ended(0, 0, 1, False, "OSError: disk is full")
    assert texts([off]) == texts([*EQUAL[1:], off]) == []
    wrong = [telling(made, norm=3.0) for made in EQUAL[1:]]
    assert texts([ALONE, *wrong, off]) == ["step 1: norm is 3, of one process 2"]


def test_a_decision_that_is_not_reported_is_no_pass() -> None:
    quiet = [replace(made, decisions=()) for made in EQUAL]
    assert texts(quiet) == ["no step reports a decision"]
    assert texts([]) == ["no step reports a decision"]
    assert texts(EQUAL[1:]) == ["step 1: one process with all samples makes no such step"]


values = st.floats(0.5, 100.0)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(values, values, st.booleans()), min_size=1, max_size=3), st.data())
def test_same_decisions_pass_and_any_other_one_is_named(
    steps: list[tuple[float, float, bool]], data: st.DataObject
) -> None:
    world_size = data.draw(st.integers(1, 5))
    history = [
        Decided(rank, step, False, stepped, (("norm", norm), ("scale", scale)))
        for step, (norm, scale, stepped) in enumerate(steps)
        for rank in range(world_size)
    ]
    alone = [
        replace(made, alone=True, norm=dict(made.decisions)["norm"] * dict(made.decisions)["scale"])
        for made in history
        if made.rank == 0
    ]
    assert texts([*history, *alone]) == []
    changed = data.draw(st.sampled_from(history))
    deed = data.draw(st.sampled_from(["norm", "scale", "skipped"]))
    other = (
        replace(changed, stepped=not changed.stepped)
        if deed == "skipped"
        else telling(changed, **{deed: 2 * dict(changed.decisions)[deed]})
    )
    history[history.index(changed)] = other
    (text,) = texts(data.draw(st.permutations([*alone, *history])))
    assert text.startswith(f"step {changed.step}: {deed} ")
    assert world_size == 1 or f"rank {changed.rank}" in text
