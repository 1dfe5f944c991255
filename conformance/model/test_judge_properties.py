"""Properties of the model's judges: all that is legal passes, and any single breach is named."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ddp_conformance.launched.history import Ended
from ddp_conformance.model import judge
from ddp_conformance.model.history import Gradients, Overwrote, Pass, State, Wrapped
from hypothesis import given
from hypothesis import strategies as st

from conformance.strategies import (
    any_record,
    changed,
    digests,
    ends,
    floats,
    quick,
    several,
    texts,
    without,
    words,
    world_sizes,
)

TOLERANCE = 1e-4
UNUSED = frozenset({"unused_parameters"})


@dataclass(frozen=True)
class Training:
    """A legal run."""

    world_size: int
    names: tuple[str, ...]
    history: list[Any]


@st.composite
def trainings(draw: st.DrawFn, sizes: st.SearchStrategy[int] = world_sizes) -> Training:
    """Steps with any number of optimizers, and of backward passes on each rank."""
    world_size = draw(sizes)
    names = tuple(draw(st.lists(words, min_size=1, max_size=3, unique=True)))
    history: list[Any] = [Wrapped(rank, names, draw(st.booleans())) for rank in range(world_size)]
    history += states(draw, judge.WRAPPING, names, world_size)
    for step in range(1, draw(st.integers(1, 2)) + 1):
        history += passes(draw, step, names, world_size)
        for _ in range(draw(st.integers(1, 2))):
            history += gradients(draw, step, names, world_size)
        history += states(draw, f"after step {step}", names, world_size)
    return Training(world_size, names, [*history, *ends(world_size)])


def states(draw: st.DrawFn, moment: str, names: Sequence[str], world_size: int) -> list[State]:
    """Buffers are those of one rank after a step: DDP sends them in the next forward pass."""
    parameters = tuple((name, draw(digests)) for name in names)
    mean = draw(digests)
    apart = moment != judge.WRAPPING and draw(st.booleans())
    return [
        State(rank, moment, parameters, (("mean", f"{mean}{rank if apart else ''}"),))
        for rank in range(world_size)
    ]


def passes(draw: st.DrawFn, step: int, names: tuple[str, ...], world_size: int) -> list[Pass]:
    """Each may have collectives of its forward pass, and the last one those of the gradients."""
    made = []
    own = draw(st.integers(0, 2))
    for rank in range(world_size):
        number = draw(st.integers(2, 4))
        made += [Pass(rank, step, p, names, own, f"{rank}-{step}-{p}") for p in range(number - 1)]
        made.append(Pass(rank, step, number - 1, names, own + draw(st.integers(1, 3)), "reduced"))
    return made


def gradients(draw: st.DrawFn, step: int, names: Sequence[str], world_size: int) -> list[Gradients]:
    """Gradients of one process, and on each rank the same to the tolerance."""
    values = {name: draw(st.lists(floats, max_size=4)) for name in names}
    found = [Gradients(0, step, True, tuple((n, tuple(v)) for n, v in values.items()))]
    for rank in range(world_size):
        share = draw(st.floats(-0.9, 0.9))
        near = tuple((name, nudged(own, share)) for name, own in values.items())
        found.append(Gradients(rank, step, False, near))
    return found


def nudged(values: Sequence[float], share: float) -> tuple[float, ...]:
    return tuple(value + share * TOLERANCE * largest_of(values) for value in values)


def found_by_all(history: Sequence[Any]) -> dict[str, list[str]]:
    """What each judge says, by its name; those that say nothing are left out."""
    found = {
        "steps": judge.judge_equal_after_steps(history),
        "wrapping": judge.judge_equal_after_wrapping(history),
        "gradients": judge.judge_gradients(history, TOLERANCE),
        "use": judge.judge_use(history, frozenset()),
        "writes": judge.judge_no_writes(history),
        "accumulation": judge.judge_accumulation(history),
    }
    return {name: texts(violations) for name, violations in found.items() if violations}


@quick
@given(trainings())
def test_legal_trainings_pass(training: Training) -> None:
    assert found_by_all(training.history) == {}


@quick
@given(trainings(several), st.data())
def test_a_rank_that_died_is_not_missed(training: Training, data: st.DataObject) -> None:
    """What ended it is another guarantee's finding; rank 0 also runs alone."""
    rank = data.draw(st.integers(1, training.world_size - 1))
    own = [r for r in training.history if r.rank == rank and not isinstance(r, Wrapped | Ended)]
    places = [p for p, record in enumerate(own) if isinstance(record, State)]
    history = without(training.history, *own[data.draw(st.sampled_from(places)) :])
    history = changed(history, any_record(data, history, Ended, lambda e: e.rank == rank), code=-9)
    found = found_by_all(history)
    assert not found.keys() - {"accumulation"}


@quick
@given(world_sizes)
def test_ranks_that_showed_nothing_are_no_pass(world_size: int) -> None:
    found = found_by_all(ends(world_size))
    assert found.keys() == {"steps", "wrapping", "gradients", "use", "writes", "accumulation"}
    for named in found.values():
        assert all(any(f"{rank}" in text for text in named) for rank in range(world_size))


# ---------------------------------------------------------------- MOD-01 and MOD-03


def judge_of(state: State) -> str:
    return "wrapping" if state.moment == judge.WRAPPING else "steps"


@quick
@given(trainings(), st.data())
def test_any_lost_state_is_named(training: Training, data: st.DataObject) -> None:
    state = any_record(data, training.history, State)
    found = found_by_all(without(training.history, state))
    if training.world_size == 1 and judge_of(state) == "steps":
        # Alone, a step of which nothing is known is no step, unless it is the only one.
        return
    assert found == {judge_of(state): [f"{state.moment} nothing is known of rank {state.rank}"]}


@quick
@given(trainings(several), st.data())
def test_any_other_parameter_is_named(training: Training, data: st.DataObject) -> None:
    state = any_record(data, training.history, State)
    place = data.draw(st.integers(0, len(training.names) - 1))
    name = training.names[place]
    kept = [*state.parameters[:place], *state.parameters[place + 1 :]]
    if data.draw(st.booleans()):
        kept.append((name, "another"))
    found = found_by_all(changed(training.history, state, parameters=tuple(kept)))
    (text,) = found.pop(judge_of(state))
    assert not found
    assert text.startswith(f"{state.moment} {name} is another on rank")
    assert any(f"rank {state.rank}" in side for side in text.split(" and "))


@quick
@given(trainings(several), st.data())
def test_any_parameter_may_be_on_one_rank_alone(training: Training, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(training.names))
    owner = data.draw(st.integers(0, training.world_size - 1))
    history = [on_its_owner(record, name, owner) for record in training.history]
    if len(training.names) == 1:  # then other ranks have nothing to step with
        history = [r for r in history if not isinstance(r, Gradients) or r.values]
    assert found_by_all(history) == {}


def on_its_owner(record: Any, name: str, owner: int) -> Any:
    if record.rank == owner or getattr(record, "alone", False):
        return record
    if isinstance(record, Wrapped):
        return replace(record, names=tuple(n for n in record.names if n != name))
    if isinstance(record, Pass):
        return replace(record, used=tuple(n for n in record.used if n != name))
    if isinstance(record, State):
        return replace(record, parameters=tuple(p for p in record.parameters if p[0] != name))
    if isinstance(record, Gradients):
        return replace(record, values=tuple(p for p in record.values if p[0] != name))
    return record


@quick
@given(trainings(several), st.data())
def test_buffers_count_after_wrapping(training: Training, data: st.DataObject) -> None:
    begun = any_record(data, training.history, State, lambda s: s.moment == judge.WRAPPING)
    found = found_by_all(changed(training.history, begun, buffers=(("mean", "x"),)))
    assert found.keys() == {"wrapping"}
    assert f"rank {begun.rank}" in found["wrapping"][0]


# ---------------------------------------------------------------- MOD-02


def of_ranks(gradients: Gradients) -> bool:
    return not gradients.alone


@quick
@given(trainings(), st.data())
def test_any_other_gradient_is_named(training: Training, data: st.DataObject) -> None:
    seen = any_record(data, training.history, Gradients, of_ranks)
    name, values = data.draw(st.sampled_from(seen.values))
    where = f"step {seen.step}, rank {seen.rank}: "
    if values:
        place = data.draw(st.integers(0, len(values) - 1))
        right = values[place]
        rest = [value for _, others in seen.values for value in others]
        wrong = data.draw(floats.filter(lambda w: is_far(w, right, values, rest)))
        spoiled = (*values[:place], wrong, *values[place + 1 :])
        expected = f"{where}the gradient of {name} has {wrong:.6g}, of one process "
    else:
        spoiled = (0.0,)
        expected = f"{where}{name} has 1 gradient values, one process 0"
    pairs = tuple((n, spoiled if n == name else v) for n, v in seen.values)
    found = found_by_all(changed(training.history, seen, values=pairs))
    (text,) = found.pop("gradients")
    assert not found
    assert text.startswith(expected)


def is_far(wrong: float, right: float, values: Sequence[float], rest: Sequence[float]) -> bool:
    """Whether a value is far, by the other values of the parameter's gradient, and by those of all
    parameters'.
    """
    if math.isnan(wrong) or math.isnan(right):
        return math.isnan(wrong) != math.isnan(right)
    near = TOLERANCE * max(3 * largest_of(values), largest_of(rest)) + 1e-6
    return wrong != right and not abs(wrong - right) <= near


def largest_of(values: Sequence[float]) -> float:
    return max((abs(value) for value in values if math.isfinite(value)), default=0.0)


@quick
@given(trainings(), st.data())
def test_any_parameter_without_its_gradient_is_named(
    training: Training, data: st.DataObject
) -> None:
    some = [g for g in training.history if isinstance(g, Gradients) and of_ranks(g)]
    pairs = [(g, name) for g in some for name, values in g.values if values]
    if not pairs:
        return
    seen, name = data.draw(st.sampled_from(pairs))
    kept = tuple((n, values) for n, values in seen.values if n != name)
    (text,) = found_by_all(changed(training.history, seen, values=kept))["gradients"]
    assert text.startswith(f"step {seen.step}, rank {seen.rank}: {name} has 0 gradient values, ")


@quick
@given(trainings(), st.data())
def test_any_lost_or_doubled_step_is_named(training: Training, data: st.DataObject) -> None:
    seen = any_record(data, training.history, Gradients, of_ranks)
    where = f"step {seen.step}, rank {seen.rank}: "
    lost = found_by_all(without(training.history, seen))["gradients"]
    assert lost[-1] == f"{where}no such step is made, one process with all samples makes it"
    place = next(p for p, record in enumerate(training.history) if record is seen)
    history = [*training.history[:place], seen, *training.history[place:]]
    doubled = found_by_all(history)["gradients"]
    assert doubled[-1] == f"{where}one process with all samples makes no such step"


# ---------------------------------------------------------------- MOD-05 and MOD-06


@quick
@given(trainings(), st.data())
def test_any_unused_parameter_is_named(training: Training, data: st.DataObject) -> None:
    seen = any_record(data, training.history, Pass)
    name = data.draw(st.sampled_from(training.names))
    history = training.history
    for one in [p for p in history if isinstance(p, Pass)]:
        if (one.rank, one.step) == (seen.rank, seen.step):
            kept = tuple(used for used in one.used if used != name)
            history = changed(history, one, used=kept)
    found = found_by_all(history)
    assert found.keys() == {"use"}
    assert found["use"][0].startswith(f"step {seen.step}, rank {seen.rank}: {name} gets no grad")
    static = any(isinstance(r, Wrapped) and r.static and r.rank == seen.rank for r in history)
    several_steps = len({p.step for p in history if isinstance(p, Pass)}) > 1
    declared = texts(judge.judge_use(history, UNUSED))
    assert len(declared) == (1 if static and several_steps else 0)
    for text in declared:
        assert text.startswith(f"rank {seen.rank}: ")
        assert f"but {name} is used in only one of the steps" in text


@quick
@given(trainings(), st.data())
def test_any_write_is_named(training: Training, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, training.world_size - 1))
    step = data.draw(st.integers(1, 2))
    found = found_by_all([*training.history, Overwrote(rank, step, training.names)])
    assert found == {
        "writes": [f"step {step}, rank {rank}: forward() changed {', '.join(training.names)}"]
    }


# ---------------------------------------------------------------- MOD-07


@quick
@given(trainings(), st.data())
def test_any_reduction_in_the_wrong_pass_is_named(training: Training, data: st.DataObject) -> None:
    seen = any_record(data, training.history, Pass)
    *_, last = (
        p for p in training.history if isinstance(p, Pass) and (p.step, p.rank) == place_of(seen)
    )
    where = f"step {seen.step}, rank {seen.rank}: gradients are "
    if seen is last:
        text, collectives = "not reduced in the last backward pass", 0
    else:
        text, collectives = f"reduced in backward pass {seen.place + 1} of ", last.collectives
    found = found_by_all(changed(training.history, seen, collectives=collectives))
    assert found.keys() == {"accumulation"}
    assert all(line.startswith(where) for line in found["accumulation"])
    assert found["accumulation"][-1].startswith(where + text)


def place_of(seen: Pass) -> tuple[int, int]:
    return seen.step, seen.rank


@quick
@given(trainings(), st.data())
def test_any_rank_that_accumulates_nothing_is_named(
    training: Training, data: st.DataObject
) -> None:
    seen = any_record(data, training.history, Pass)
    own = [
        p
        for p in training.history
        if isinstance(p, Pass) and (p.rank, p.step) == (seen.rank, seen.step)
    ]
    kept = data.draw(st.integers(0, 1))
    if training.world_size == 1 and kept == 0:
        return  # then it is no step at all
    found = found_by_all(without(training.history, *own[: len(own) - kept]))
    expected = f"step {seen.step}, rank {seen.rank}: {kept} backward passes, so that nothing"
    assert any(text.startswith(expected) for text in found["accumulation"])


@quick
@given(trainings(several), st.data())
def test_gradients_that_are_equal_too_early_are_named(
    training: Training, data: st.DataObject
) -> None:
    firsts = [p for p in training.history if isinstance(p, Pass) and p.place == 0]
    step = data.draw(st.sampled_from(sorted({p.step for p in firsts})))
    history = training.history
    for one in firsts:
        if one.step == step:
            history = changed(history, one, digest="the same")
    assert found_by_all(history) == {
        "accumulation": [f"step {step}: all ranks have the same gradients after backward pass 1"]
    }
