"""Properties of the judges of publishing, guards and preparation: any single breach is named."""

from __future__ import annotations

from typing import Any

from ddp_conformance.framework.history import Failed
from ddp_conformance.writing import judge_publishing as judge
from ddp_conformance.writing.history import Glimpse, Guarded, Opened, Prepared, Saw, SetUp
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

# ---------------------------------------------------------------- WRT-02


@st.composite
def publications(draw: st.DrawFn) -> tuple[int, int, list[Any]]:
    """Numbers of ranks and records; any glimpses, also none, and every rank reads in time."""
    world_size, number = draw(world_sizes), draw(st.integers(1, 3))
    late = draw(st.integers(0, world_size - 1))
    history: list[Any] = []
    for record in range(number):
        glimpses = st.builds(
            Glimpse,
            st.integers(0, world_size - 1),
            st.just(record),
            st.sampled_from([record - 1, record]),
            after=words,
        )
        history += draw(st.lists(glimpses, max_size=4))
        order = draw(st.permutations(range(world_size)))
        history += [Saw(rank, record, record, late) for rank in order]
    return world_size, number, history


@quick
@given(publications(), st.data())
def test_any_record_that_is_not_there_in_time_is_named(
    case: tuple[int, int, list[Any]], data: st.DataObject
) -> None:
    world_size, number, history = case
    assert judge.judge_in_time(history, number, world_size) == ()
    saw = any_record(data, history, Saw)
    last = data.draw(others(st.integers(-1, number + 2), saw.number))
    for spoiled, expected in (
        (changed(history, saw, last=last), f"rank {saw.rank} reads "),
        (changed(history, saw, problem="EOFError: x"), f"rank {saw.rank} cannot read record "),
        (without(history, saw), f"rank {saw.rank} never returned from record {saw.number}: "),
    ):
        (text,) = texts(judge.judge_in_time(spoiled, number, world_size))
        assert text.startswith(expected)
        assert f"{saw.number}" in text


@quick
@given(publications(), words, st.data())
def test_any_moment_in_which_the_files_are_not_whole_is_named(
    case: tuple[int, int, list[Any]], after: str, data: st.DataObject
) -> None:
    world_size, number, history = case
    assert judge.judge_atomic(history) == ()
    record = data.draw(st.integers(0, number - 1))
    last = data.draw(others(st.integers(-1, number + 2), record, record - 1))
    place = data.draw(st.integers(0, len(history)))
    rank = data.draw(st.integers(0, world_size - 1))
    where = f"while rank {rank} makes record {record}, after {after}: "
    lacking = "the last record is " if last >= 0 else "no record can be read, not even "
    for glimpse, expected in (
        (Glimpse(rank, record, last, "", after), lacking),
        (Glimpse(rank, record, record, "EOFError: x", after), "the files cannot be read: EOF"),
    ):
        (text,) = texts(judge.judge_atomic([*history[:place], glimpse, *history[place:]]))
        assert text.startswith(where + expected)


# ---------------------------------------------------------------- WRT-05


@st.composite
def guards(draw: st.DrawFn) -> list[Guarded]:
    """Records of several stages: in each the same one rank acts, or all refuse."""
    world_size = draw(several)
    acting = draw(st.integers(0, world_size - 1))
    stages = draw(st.lists(words, min_size=2, max_size=4, unique=True))
    history: list[Guarded] = []
    for place, stage in enumerate(stages):
        refuses = place > 0 and draw(st.booleans())
        ranks = draw(st.permutations(range(world_size)))
        history += [
            Guarded(r, stage, r == acting and not refuses, "KeyError: x" if refuses else "")
            for r in ranks
        ]
    return history


@quick
@given(guards(), st.data())
def test_any_other_answer_of_a_guard_is_named(history: list[Guarded], data: st.DataObject) -> None:
    assert judge.judge_guard(history) == ()
    answer = any_record(data, history, Guarded)
    where = f"{answer.stage}: "
    (text,) = texts(judge.judge_guard(without(history, answer)))[:1]
    assert text == f"{where}rank {answer.rank} never called the guard"
    if answer.error:
        (text,) = texts(judge.judge_guard(changed(history, answer, error="", ran=False)))
        assert text.startswith(f"{where}no rank acted, rank ")
        assert f"rank {answer.rank} raised" not in text
    elif answer.ran:
        assert texts(judge.judge_guard(changed(history, answer, ran=False))) == [
            f"{where}no rank acted"
        ]
    else:
        (text,) = texts(judge.judge_guard(changed(history, answer, ran=True)))
        assert text.startswith(where)
        assert f"{answer.rank}" in text
        assert text.endswith(" acted")
        (text,) = texts(judge.judge_guard(changed(history, answer, error="OSError: x")))
        assert text.endswith(f", rank {answer.rank} raised OSError: x")


@quick
@given(guards(), words, st.data())
def test_another_rank_in_another_stage_is_named(
    history: list[Guarded], stage: str, data: st.DataObject
) -> None:
    (acting,) = {answer.rank for answer in history if answer.ran}
    ranks = {answer.rank for answer in history}
    other = data.draw(st.sampled_from(sorted(ranks - {acting})))
    stage = f"another {stage}"
    more = [Guarded(rank, stage, rank == other) for rank in sorted(ranks)]
    (text,) = texts(judge.judge_guard([*history, *more]))
    assert text.startswith("another rank acts from stage to stage: ")
    assert f"{stage}: rank {other}" in text
    assert f": rank {acting}" in text


# ---------------------------------------------------------------- WRT-06


@st.composite
def preparations(draw: st.DrawFn) -> tuple[int, list[Any]]:
    """Prepared by one rank or by none, and set up on all; files of each rank's own."""
    world_size = draw(world_sizes)
    by = draw(st.integers(0, world_size - 1) | st.none())
    history: list[Any] = [] if by is None else [Prepared(by, False)]
    for rank in range(world_size):
        history.append(SetUp(rank, by is not None))
        paths = draw(st.lists(words, max_size=2))
        history += [Opened(rank, f"{rank}/{path}", "setup") for path in paths]
    return world_size, history


@quick
@given(preparations(), st.data())
def test_any_wrong_preparation_is_named(case: tuple[int, list[Any]], data: st.DataObject) -> None:
    world_size, history = case
    assert judge.judge_preparation(history, range(world_size)) == ()
    start = any_record(data, history, SetUp)
    rank = start.rank
    prepared = next((record for record in history if isinstance(record, Prepared)), None)

    def named(spoiled: list[Any]) -> list[str]:
        return texts(judge.judge_preparation(spoiled, range(world_size)))

    assert named(without(history, start)) == [f"setup never began on rank {rank}"]
    error = Failed(rank, "RuntimeError: x")
    assert named([*history, error]) == [f"rank {rank} cannot be set up: RuntimeError: x"]
    assert named([*without(history, start), error]) == named([*history, error])
    if prepared is not None:
        (text,) = named(changed(history, start, prepared=False))
        assert text == f"setup began on rank {rank} before prepare_data had ended"
        (text,) = named(changed(history, prepared, in_setup=True))
        assert text == f"prepare_data ran on rank {prepared.rank} when setup had begun there"
        (text,) = named([*history, Prepared(rank, False)])
        low, high = sorted((rank, prepared.rank))
        assert text == f"prepare_data ran 2 times, on ranks {low} and {high}"
    if world_size > 1:
        other = (rank + 1) % world_size
        both = [Opened(r, "data", "setup") for r in (rank, other)]
        (text,) = named([*history, *both])
        low, high = sorted((rank, other))
        assert text == f"data is written by the code of ranks {low} and {high} in setup"
