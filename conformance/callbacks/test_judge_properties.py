"""Properties of the callbacks' judges: all that is legal passes, any single breach is named."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ddp_conformance.callbacks import judge
from ddp_conformance.callbacks.history import LoopEnd, StepEnd, Traced
from hypothesis import given
from hypothesis import strategies as st

from conformance.strategies import (
    any_record,
    changed,
    others,
    quick,
    several,
    texts,
    without,
    words,
    world_sizes,
)


@dataclass(frozen=True)
class Loop:
    """A legal run of a loop."""

    world_size: int
    history: list[Any]


@st.composite
def loops(draw: st.DrawFn, sizes: st.SearchStrategy[int] = world_sizes) -> Loop:
    """Any collectives in any groups, also none; each rank from lines of its own."""
    world_size = draw(sizes)
    history: list[Any] = []
    ranks = range(world_size)
    subsets = st.sets(st.sampled_from(ranks), min_size=1).map(lambda s: tuple(sorted(s)))
    groups = [tuple(ranks), *draw(st.lists(subsets, max_size=2))]
    for name, members in enumerate(groups):
        calls = draw(st.lists(st.tuples(words, words | st.just("")), max_size=4))
        history += [
            Traced(rank, str(name), members, number, what, functions, draw(words | st.just("")))
            for rank in members
            for number, (what, functions) in enumerate(calls)
        ]
    values = st.floats().map(repr) | st.sampled_from(["True", "'nothing'", "None"])
    decisions = st.dictionaries(words, values, max_size=3).map(lambda d: tuple(sorted(d.items())))
    steps = draw(st.lists(decisions, min_size=1, max_size=4))
    if not any(steps):
        steps[0] = (("stop", "False"),)
    for rank in ranks:
        history += [StepEnd(rank, step, made) for step, made in enumerate(steps)]
        history.append(LoopEnd(rank, len(steps)))
    return Loop(world_size, sorted(history, key=lambda record: record.rank))


@quick
@given(loops())
def test_legal_loops_pass(loop: Loop) -> None:
    assert judge.judge_same_trace(loop.history) == ()
    assert judge.judge_decisions(loop.history) == ()


@quick
@given(world_sizes)
def test_loops_without_a_step_are_no_pass(world_size: int) -> None:
    history = [LoopEnd(rank, 0) for rank in range(world_size)]
    assert texts(judge.judge_same_trace(history)) == ["no rank made a step"]
    assert texts(judge.judge_decisions(history)) == ["no rank reported a decision"]


# ---------------------------------------------------------------- CBK-01


@quick
@given(loops(several), st.data())
def test_any_other_collective_is_named(loop: Loop, data: st.DataObject) -> None:
    shared = [r for r in loop.history if isinstance(r, Traced) and len(r.members) > 1]
    if not shared:
        return
    call = data.draw(st.sampled_from(shared))
    place = next(p for p, record in enumerate(loop.history) if record is call)
    known = [text for other in shared for text in (other.what, other.functions)]
    what = data.draw(others(words, *known))
    for history in (
        changed(loop.history, call, what=what),
        changed(loop.history, call, functions=what),
        without(loop.history, call),
        [*loop.history[:place], call, *loop.history[place:]],
        changed(loop.history, call, group="another"),
    ):
        found = texts(judge.judge_same_trace(history))
        # A loss or a repetition among equal calls shows at the end of them.
        (text,) = found
        assert text.startswith("collective ")
        assert f": rank {call.members[0]} " in text
        assert f"rank {call.rank} " in text
    (text,) = texts(judge.judge_same_trace(changed(loop.history, call, what=what)))
    assert text.startswith(f"collective {call.number} of ranks ")
    assert f"rank {call.rank} {what}" in text


@quick
@given(loops(several), st.data())
def test_two_collectives_in_another_order_are_named(loop: Loop, data: st.DataObject) -> None:
    pairs = [
        (one, other)
        for one in loop.history
        for other in loop.history
        if isinstance(one, Traced)
        and isinstance(other, Traced)
        and (one.rank, one.group, one.number + 1) == (other.rank, other.group, other.number)
        and len(one.members) > 1
        and (one.what, one.functions) != (other.what, other.functions)
    ]
    if not pairs:
        return
    one, other = data.draw(st.sampled_from(pairs))
    swapped = {id(one): replace(other, number=one.number), id(other): replace(one, number=1)}
    history = [swapped.get(id(record), record) for record in loop.history]
    (text,) = texts(judge.judge_same_trace(history))
    assert text.startswith(f"collective {one.number} of ranks ")
    assert f"rank {one.rank} {other.what}" in text


# ---------------------------------------------------------------- CBK-02


@quick
@given(loops(several), st.data())
def test_any_other_decision_is_named(loop: Loop, data: st.DataObject) -> None:
    end = any_record(data, loop.history, StepEnd, lambda e: bool(e.decisions))
    name, value = data.draw(st.sampled_from(end.decisions))
    kept = tuple(pair for pair in end.decisions if pair[0] != name)
    other = data.draw(others(st.floats().map(repr), value))
    for decisions, shown in (((*kept, (name, other)), other), (kept, "nothing")):
        (text,) = texts(judge.judge_decisions(changed(loop.history, end, decisions=decisions)))
        assert text.startswith(f"step {end.step}: {name} differs: ")
        assert f"rank {end.rank}: {shown}" in text


@quick
@given(loops(several), st.data())
def test_any_foreign_decision_is_named(loop: Loop, data: st.DataObject) -> None:
    end = any_record(data, loop.history, StepEnd)
    name = data.draw(others(words, *dict(end.decisions)))
    decisions = (*end.decisions, (name, "1.0"))
    (text,) = texts(judge.judge_decisions(changed(loop.history, end, decisions=decisions)))
    assert text.startswith(f"step {end.step}: {name} differs: ")
    assert f"rank {end.rank}: 1.0" in text


@quick
@given(loops(several), st.data())
def test_any_rank_that_leaves_out_steps_is_named(loop: Loop, data: st.DataObject) -> None:
    """A rank leaves out its decisions from any step on, also from the first."""
    end = any_record(data, loop.history, StepEnd)
    later = [
        r
        for r in loop.history
        if isinstance(r, StepEnd) and r.rank == end.rank and r.step >= end.step
    ]
    found = texts(judge.judge_decisions(without(loop.history, *later)))
    assert len(found) == len(later)
    for text, lost in zip(found, later, strict=True):
        assert text.startswith(f"step {lost.step} is made by rank")
        assert text.endswith(f", and not by rank {end.rank}")
