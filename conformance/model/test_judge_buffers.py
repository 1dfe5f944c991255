"""The judge of buffers on hand-made histories, and its property."""

from __future__ import annotations

from dataclasses import replace

from ddp_conformance.launched.history import Ended
from ddp_conformance.model.history import Buffers, State
from ddp_conformance.model.judge_buffers import judge_equal_buffers
from hypothesis import given, settings
from hypothesis import strategies as st

EVALUATED = Buffers(0, "evaluation", 1, (("mean", "a"), ("count", "b")))
SAVED = replace(EVALUATED, use="checkpoint", step=2)
EQUAL = [replace(seen, rank=rank) for seen in (EVALUATED, SAVED) for rank in (0, 1, 2)]


def texts(history: list[Buffers]) -> list[str]:
    return [str(violation) for violation in judge_equal_buffers(history)]


def test_equal_buffers_pass_whatever_they_are_after_a_step() -> None:
    states = [State(rank, "after step 1", (), (("mean", f"{rank}"),)) for rank in (0, 1)]
    assert judge_equal_buffers([*states, *EQUAL]) == ()


def test_the_first_buffer_that_differs_is_named() -> None:
    other = replace(EVALUATED, rank=1, contents=(("mean", "x"), ("count", "x")))
    assert texts([EQUAL[0], other, *EQUAL[2:]]) == [
        "evaluation after step 1: mean is another on ranks 0 and 2 and rank 1, as are 1 more"
    ]


def test_a_buffer_that_one_rank_lacks_is_named() -> None:
    short = replace(SAVED, rank=2, contents=(("mean", "a"),))
    assert texts([*EQUAL[:5], short]) == [
        "checkpoint after step 2: count is another on ranks 0 and 1 and rank 2"
    ]


def test_a_buffer_that_another_stage_has_is_not_missed() -> None:
    stages = [replace(seen, contents=seen.contents[seen.rank : seen.rank + 1]) for seen in EQUAL]
    assert texts([seen for seen in stages if seen.rank < 2]) == []


def test_what_was_not_shown_is_no_pass() -> None:
    assert texts([]) == [
        "no buffer was seen in any evaluation",
        "no buffer was seen in any checkpoint",
    ]
    assert texts(EQUAL[:3]) == ["no buffer was seen in any checkpoint"]
    empty = [replace(seen, contents=()) for seen in EQUAL[3:]]
    assert texts([*EQUAL[:3], *empty]) == ["no buffer was seen in any checkpoint"]


def test_a_run_that_broke_off_need_not_have_come_to_a_checkpoint() -> None:
    raised = Ended(1, order=0, code=1, returned=False, error="RuntimeError: x")
    assert judge_equal_buffers([raised]) == ()
    assert judge_equal_buffers([*EQUAL[:3], raised]) == ()


names = st.lists(st.sampled_from(["mean", "var", "count"]), min_size=1, unique=True)


@settings(deadline=None, max_examples=50)
@given(names, st.integers(1, 5), st.integers(1, 3), st.data())
def test_equal_buffers_pass_and_any_other_one_is_named(
    buffers: list[str], world_size: int, steps: int, data: st.DataObject
) -> None:
    history = [
        Buffers(rank, use, step, tuple((name, f"{name} {use} {step}") for name in buffers))
        for rank in range(world_size)
        for step in range(steps)
        for use in ("evaluation", "checkpoint")
    ]
    assert judge_equal_buffers(history) == ()
    changed = data.draw(st.sampled_from(history))
    name = data.draw(st.sampled_from(buffers))
    contents = {**dict(changed.contents), name: "another"}
    history[history.index(changed)] = replace(changed, contents=tuple(contents.items()))
    found = texts(data.draw(st.permutations(history)))
    if world_size == 1:
        assert found == []
    else:
        (text,) = found
        assert text.startswith(f"{changed.use} after step {changed.step}: {name} is another on ")
        assert f"rank {changed.rank}" in text
