"""Properties of the training loops' judges: the legal passes, any single breach is named.

How a resumed run is compared with a whole one (DET-02) has its own hand-made histories.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ddp_conformance.determinism import judge
from ddp_conformance.determinism.history import (
    DeviceMemory,
    HeldModule,
    LoopLoss,
    LoopParameters,
    LoopStep,
    Sketch,
)
from hypothesis import given
from hypothesis import strategies as st

from conformance.strategies import (
    any_record,
    changed,
    dealt,
    digests,
    floats,
    quick,
    several,
    texts,
    without,
    words,
    world_sizes,
)

TOLERANCE = 1e-4
GENERATORS = ("python", "numpy", "torch")


@dataclass(frozen=True)
class Training:
    """A loop that was run whole, once more, and on one process alone."""

    world_size: int
    size: int
    history: list[Any]


@st.composite
def trainings(draw: st.DrawFn, sizes: st.SearchStrategy[int] = world_sizes) -> Training:
    """Epochs with any shares, padded by fewer samples than ranks; one rank may have none."""
    world_size, size = draw(sizes), draw(st.integers(1, 9))
    epochs = [epoch_of(draw, epoch, world_size, size) for epoch in range(draw(st.integers(1, 3)))]
    # Equal numbers of different ranks, generators and steps are what seeds must not give.
    whole = [
        replace(step, draws=tuple((name, place / 7) for name in GENERATORS))
        for place, step in enumerate(step for steps in epochs for step in steps)
    ]
    losses = [draw(floats) for _ in epochs]
    history: list[Any] = []
    begin, end = (sketches(draw) for _ in range(2))
    for rank in draw(st.permutations(range(world_size))):
        share = draw(st.floats(-0.9, 0.9)) * TOLERANCE
        own: list[Any] = [
            LoopParameters(rank, "whole", "begin", begin),
            *(step for step in whole if step.rank == rank),
            *(LoopLoss(rank, "whole", e, loss * (1 + share)) for e, loss in enumerate(losses)),
            LoopParameters(rank, "whole", "end", end),
            HeldModule(rank, "dataset.encoder", trained=False, changed=False),
        ]
        again = [replace(r, run="again") for r in own if isinstance(r, LoopStep | LoopParameters)]
        history += [*own, *again]
        history += [DeviceMemory(rank, rank, d, 512 * (d == rank)) for d in range(world_size)]
    history += [LoopLoss(0, "alone", epoch, loss) for epoch, loss in enumerate(losses)]
    return Training(world_size, size, history)


def epoch_of(draw: st.DrawFn, epoch: int, world_size: int, size: int) -> list[LoopStep]:
    """An epoch in batches of up to three."""
    padding = draw(st.integers(0, min(world_size - 1, size)))
    shares = dealt(draw, [*range(size), *range(padding)], world_size)
    batch = draw(st.integers(1, 3))
    return [
        LoopStep(rank, "whole", epoch, tuple(share[start : start + batch]), ())
        for rank, share in enumerate(shares)
        for start in range(0, len(share), batch)
    ]


def sketches(draw: st.DrawFn) -> tuple[Sketch, ...]:
    """Sketches of parameters that may have left the numbers."""
    names = draw(st.lists(words, min_size=1, max_size=3, unique=True))
    return tuple(Sketch(name, draw(digests), abs(draw(floats)), draw(floats)) for name in names)


def found_by_all(history: Sequence[Any]) -> dict[str, list[str]]:
    """The violations that each judge finds, by its name; judges that find none are left out."""
    found = {
        "repetition": judge.judge_same_run(history, "again"),
        "states": judge.judge_random_states(history, "again"),
        "losses": judge.judge_same_losses(history, TOLERANCE),
        "seeds": judge.judge_seeds(history, 41),
        "modules": judge.judge_held_modules(history),
        "memory": judge.judge_own_device(history),
    }
    return {name: texts(violations) for name, violations in found.items() if violations}


def whole(record: LoopStep | LoopLoss | LoopParameters) -> bool:
    return record.run == "whole"


@quick
@given(trainings())
def test_legal_trainings_pass(training: Training) -> None:
    assert found_by_all(training.history) == {}


@quick
@given(world_sizes)
def test_loops_that_report_nothing_are_no_pass(world_size: int) -> None:
    history = [DeviceMemory(rank, rank, rank, 0) for rank in range(world_size)]
    found = found_by_all(history)
    assert found.keys() == {"repetition", "states", "losses", "seeds", "memory"}
    assert found["memory"] == [f"rank {rank} used no GPU" for rank in range(world_size)]
    assert found_by_all([]).keys() == found.keys()


# ---------------------------------------------------------------- DET-01


def steps_of(training: Training, run: str, rank: int) -> list[LoopStep]:
    return [
        r for r in training.history if isinstance(r, LoopStep) and (r.run, r.rank) == (run, rank)
    ]


@quick
@given(trainings(), st.data())
def test_any_other_step_of_the_second_run_is_named(training: Training, data: st.DataObject) -> None:
    step = any_record(data, training.history, LoopStep, lambda s: s.run == "again")
    place = steps_of(training, "again", step.rank).index(step)
    history = training.history
    for spoiled in (
        changed(history, step, ids=(*step.ids, 99)),
        changed(history, step, ids=step.ids[1:]),
        changed(history, step, epoch=step.epoch + 1),
    ):
        (text,) = found_by_all(spoiled)["repetition"]
        assert text.startswith(f"again: rank {step.rank}, step {place}: samples ")
    for spoiled in (without(history, step), [*history, step]):
        (text,) = found_by_all(spoiled)["repetition"]
        assert text.startswith(f"again: rank {step.rank}, step ")


@quick
@given(trainings(), st.data())
def test_any_other_parameter_of_the_second_run_is_named(
    training: Training, data: st.DataObject
) -> None:
    end = any_record(
        data, training.history, LoopParameters, lambda p: (p.run, p.when) == ("again", "end")
    )
    one = data.draw(st.sampled_from(end.sketches))
    kept = [sketch for sketch in end.sketches if sketch is not one]
    for spoiled in (kept, [*kept, replace(one, digest="another")]):
        found = found_by_all(changed(training.history, end, sketches=tuple(spoiled)))
        named = f"again: rank {end.rank} ends with another {one.name}"
        assert found == {"repetition": [named]}
    assert found_by_all(without(training.history, end)) == {
        "repetition": [f"again: rank {end.rank} reports no final parameters"]
    }


# ---------------------------------------------------------------- DET-03


@quick
@given(trainings(), st.data())
def test_any_other_random_state_is_named(training: Training, data: st.DataObject) -> None:
    step = any_record(data, training.history, LoopStep, lambda s: s.run == "again")
    own = steps_of(training, "again", step.rank)
    place = next(p for p, other in enumerate(own) if other is step)
    name = data.draw(st.sampled_from(GENERATORS))
    draws = tuple((n, value + 0.5 * (n == name)) for n, value in step.draws)
    lost = tuple(pair for pair in step.draws if pair[0] != name)
    for spoiled in (draws, lost):
        found = found_by_all(changed(training.history, step, draws=spoiled))
        where = f"epoch {step.epoch}: again: rank {step.rank}, step {place}"
        assert found == {"states": [f"{where}: {name} goes on from another state"]}
    fewer = without(training.history, *own[place:])
    (text,) = found_by_all(fewer)["states"]
    assert (
        text == f"epoch {step.epoch}: again: rank {step.rank}, step {place}: no such step is made"
    )


# ---------------------------------------------------------------- DET-04


@quick
@given(trainings(), st.data())
def test_any_other_loss_is_named(training: Training, data: st.DataObject) -> None:
    loss = any_record(data, training.history, LoopLoss, whole)
    far = [math.nan, math.inf, -math.inf]
    far += [loss.loss * 1.01 + 1.0] if math.isfinite(loss.loss) and loss.loss >= 0 else []
    wrong = data.draw(st.sampled_from([w for w in far if not same(w, loss.loss)]))
    where = f"epoch {loss.epoch}: rank {loss.rank} reports"
    found = found_by_all(changed(training.history, loss, loss=wrong))
    (text,) = found.pop("losses")
    assert not found
    assert text.startswith(f"{where} {wrong:.6g}, one process alone ")
    found = found_by_all(without(training.history, loss))
    if training.world_size > 1 or "no epoch's loss was reported" not in found["losses"]:
        (text,) = found["losses"]
        assert text.startswith(f"{where} nothing, one process alone ")


def same(value: float, other: float) -> bool:
    return value == other or (math.isnan(value) and math.isnan(other))


@quick
@given(trainings(), st.data())
def test_any_epoch_that_one_process_alone_lacks_is_named(
    training: Training, data: st.DataObject
) -> None:
    loss = any_record(data, training.history, LoopLoss, lambda r: r.run == "alone")
    found = found_by_all(without(training.history, loss))["losses"]
    if loss.epoch == 0 and len(found) == 1 and training.world_size > 1:
        assert found == ["no epoch's loss was reported"]
    elif found != ["no epoch's loss was reported"]:
        assert len(found) == training.world_size
        assert all(text.startswith(f"epoch {loss.epoch}: rank ") for text in found)


# ---------------------------------------------------------------- DET-05


@quick
@given(trainings(several), st.data())
def test_any_other_beginning_is_named(training: Training, data: st.DataObject) -> None:
    begin = any_record(
        data, training.history, LoopParameters, lambda p: (p.run, p.when) == ("whole", "begin")
    )
    first, *rest = begin.sketches
    for spoiled in (rest, [replace(first, digest="another"), *rest]):
        found = found_by_all(changed(training.history, begin, sketches=tuple(spoiled)))
        named = found.pop("seeds")
        assert not found
        accused = range(1, training.world_size) if begin.rank == 0 else [begin.rank]
        words_of = "begins with other parameters than rank 0"
        assert named == [f"rank {rank} {words_of}" for rank in accused]
    assert found_by_all(without(training.history, begin)) == {
        "seeds": [f"rank {begin.rank} reports no initial parameters"]
    }


@quick
@given(trainings(), st.data())
def test_as_many_repeated_samples_as_ranks_are_named(
    training: Training, data: st.DataObject
) -> None:
    step = any_record(data, training.history, LoopStep, whole)
    ids = step.ids + step.ids[:1] * training.world_size
    history = changed(training.history, step, ids=ids)
    named = [text for text in found_by_all(history)["seeds"] if "repeated" in text]
    (text,) = named
    assert text.startswith(f"epoch {step.epoch}: ")
    assert ", index " in text


@quick
@given(trainings(several), st.data())
def test_equal_draws_of_two_ranks_are_named(training: Training, data: st.DataObject) -> None:
    firsts = [
        own[0] for rank in range(training.world_size) if (own := steps_of(training, "whole", rank))
    ]
    if len(firsts) < 2:
        return
    one, other = data.draw(st.permutations(firsts))[:2]
    name = data.draw(st.sampled_from(GENERATORS))
    draws = tuple((n, dict(one.draws)[n] if n == name else v) for n, v in other.draws)
    low, high = sorted((one.rank, other.rank))
    found = found_by_all(changed(training.history, other, draws=draws))
    assert found["seeds"] == [f"ranks {low} and {high} draw the same from {name}"]


# ---------------------------------------------------------------- MEM-05 and MEM-06


@quick
@given(trainings(), st.booleans(), st.data())
def test_any_module_that_is_not_left_alone_is_named(
    training: Training, trained: bool, data: st.DataObject
) -> None:
    held = any_record(data, training.history, HeldModule)
    spoiled = changed(training.history, held, trained=trained, changed=not trained)
    what = "is part of the model that is trained" if trained else "was changed or moved"
    assert found_by_all(spoiled) == {"modules": [f"{held.path} on rank {held.rank} {what}"]}


@quick
@given(trainings(several), st.data())
def test_any_memory_on_another_device_is_named(training: Training, data: st.DataObject) -> None:
    foreign = any_record(data, training.history, DeviceMemory, lambda m: m.own != m.device)
    assert found_by_all(changed(training.history, foreign, allocated=64)) == {
        "memory": [
            f"rank {foreign.rank} of GPU {foreign.own} allocated 64 bytes on {foreign.device}"
        ]
    }
    own = any_record(data, training.history, DeviceMemory, lambda m: m.own == m.device)
    idle = [f"rank {own.rank} used no GPU"]
    assert found_by_all(changed(training.history, own, allocated=0)) == {"memory": idle}
    assert found_by_all(without(training.history, own)) == {"memory": idle}
