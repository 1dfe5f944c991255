"""Properties of the judges of error paths (CBK-04): legal ends pass, any single breach is named."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ddp_conformance.callbacks import judge
from ddp_conformance.callbacks.history import LoopEnd, StepEnd, Tripped
from ddp_conformance.framework.history import Collective, Failed
from ddp_conformance.launched.history import Ended
from ddp_conformance.launched.order import Death
from ddp_conformance.lifecycle.subjects import DEATHS
from hypothesis import given
from hypothesis import strategies as st

from conformance.strategies import (
    any_record,
    changed,
    ends,
    others,
    quick,
    several,
    texts,
    without,
    words,
    world_sizes,
)

SKIPPED = (("skip", "True"),)

CODE_OF: dict[Death, int] = {"raises": 1, "is killed": -9, "exits with 0": 0}


@dataclass(frozen=True)
class Error:
    """A legal run in which user code failed on one rank, or its process died there."""

    rank: int
    step: int
    death: Death
    history: list[Any]

    @property
    def spared(self) -> set[int]:
        """The rank that may end with exit code 0, for it was made to."""
        return {self.rank} if self.death == "exits with 0" else set()


@st.composite
def deaths(draw: st.DrawFn, sizes: st.SearchStrategy[int] = world_sizes) -> Error:
    """One process dies, and the others end badly, in any order, from any step on."""
    world_size = draw(sizes)
    rank, step = draw(st.integers(0, world_size - 1)), draw(st.integers(0, 3))
    death = draw(st.sampled_from(DEATHS))
    history: list[Any] = []
    for place, other in enumerate(draw(st.permutations(range(world_size)))):
        steps = step if other == rank else draw(st.integers(0, step + 2))
        history += [StepEnd(other, number) for number in range(steps)]
        code = CODE_OF[death] if other == rank else draw(others(st.integers(-64, 255), 0))
        history += [Tripped(rank, step)] * (other == rank)
        history.append(Ended(other, place, code, returned=False))
    return Error(rank, step, death, history)


@st.composite
def raised(draw: st.DrawFn, sizes: st.SearchStrategy[int] = world_sizes) -> Error:
    """One rank raises; the others raise too, or wait for it."""
    world_size = draw(sizes)
    rank, step = draw(st.integers(0, world_size - 1)), draw(st.integers(0, 3))
    history: list[Any] = [Tripped(rank, step), Failed(rank, draw(words))]
    for other in range(world_size):
        history += [StepEnd(other, number) for number in range(step)]
        if other != rank:
            history.append(draw(st.sampled_from([Failed(other, "e"), Collective(other, 1, "x")])))
    return Error(rank, step, "raises", history)


@st.composite
def skipped(draw: st.DrawFn, sizes: st.SearchStrategy[int] = world_sizes) -> Error:
    """Histories in which all ranks leave out the step, record that, and end well."""
    world_size = draw(sizes)
    rank, step = draw(st.integers(0, world_size - 1)), draw(st.integers(0, 3))
    steps = step + draw(st.integers(1, 3))
    history: list[Any] = [Tripped(rank, step), *ends(world_size)]
    for other in range(world_size):
        decisions = [SKIPPED if number == step else () for number in range(steps)]
        history += [StepEnd(other, number, one) for number, one in enumerate(decisions)]
        history.append(LoopEnd(other, steps))
    return Error(rank, step, "raises", history)


def judged(error: Error, history: list[Any]) -> list[str]:
    """The violations that the judge of deaths finds in a history."""
    return texts(judge.judge_death(history, error.death))


@quick
@given(deaths(), raised(), skipped())
def test_legal_errors_pass(death: Error, error: Error, skip: Error) -> None:
    assert judged(death, death.history) == []
    assert judge.judge_error_path(error.history) == ()
    assert judged(skip, skip.history) == []
    assert judge.judge_error_path(skip.history) == ()


@quick
@given(deaths() | raised() | skipped())
def test_an_error_that_never_came_is_no_pass(error: Error) -> None:
    history = [record for record in error.history if not isinstance(record, Tripped)]
    for found in (judged(error, history), texts(judge.judge_error_path(history))):
        (text,) = found
        assert text.startswith("trip(step) was never called")


# ---------------------------------------------------------------- processes that die


@quick
@given(deaths() | skipped(), st.data())
def test_any_rank_that_has_to_be_stopped_is_named(error: Error, data: st.DataObject) -> None:
    end = any_record(data, error.history, Ended)
    (text,) = judged(error, changed(error.history, end, code=None))
    alone, _, cause = text.partition(", after ")
    assert alone == f"rank {end.rank} had not ended and was stopped"
    dead = [e.rank for e in error.history if isinstance(e, Ended) and e is not end and e.code]
    assert any(cause.startswith(f"rank {rank} ") for rank in dead) == bool(dead) == bool(cause)


@quick
@given(deaths(), st.booleans(), st.data())
def test_any_rank_that_ends_as_if_all_were_well_is_named(
    error: Error, returned: bool, data: st.DataObject
) -> None:
    end = any_record(data, error.history, Ended)
    found = judged(error, changed(error.history, end, code=0, returned=returned))
    if end.rank in error.spared:
        assert found == []
        return
    (text,) = found
    assert text.startswith(f"rank {end.rank} ")
    assert " with exit code 0" in text
    assert text.endswith(f", although rank {error.rank} {error.death} in step {error.step}")


@quick
@given(deaths() | skipped(), st.data())
def test_any_rank_whose_end_was_not_seen_is_named(error: Error, data: st.DataObject) -> None:
    """A rank that has left no other record either is not known to the judge."""
    endless = [record for record in error.history if not isinstance(record, Ended)]
    known = {record.rank for record in endless}
    end = any_record(data, error.history, Ended, lambda ended: ended.rank in known)
    assert judged(error, endless) == ["the end of no rank was seen"]
    if len(error.history) - len(endless) > 1:
        (text,) = judged(error, without(error.history, end))
        assert text == f"the end of rank {end.rank} was not seen"


@quick
@given(skipped(several), st.sampled_from(["is killed", "exits with 0"]))
def test_a_death_is_nothing_to_skip(error: Error, death: Death) -> None:
    found = texts(judge.judge_death(error.history, death))
    spared = {error.rank} if death == "exits with 0" else set()
    ended = [r.rank for r in error.history if isinstance(r, Ended) and r.rank not in spared]
    assert [text.partition(" ended ")[0] for text in found] == [
        f"rank {rank}" for rank in sorted(ended)
    ]


# ---------------------------------------------------------------- both judges


@quick
@given(skipped(), st.data())
def test_a_step_that_one_rank_does_not_skip_is_no_pass(error: Error, data: st.DataObject) -> None:
    step = any_record(data, error.history, StepEnd, lambda end: end.step == error.step)
    end = any_record(data, error.history, LoopEnd)
    value = data.draw(others(words, "True"))
    for history in (
        changed(error.history, step, decisions=()),
        changed(error.history, step, decisions=(("skip", value),)),
        without(error.history, step),
        without(error.history, end),
    ):
        ended = sorted(r.rank for r in history if isinstance(r, Ended))
        for rank, text in zip(ended, judged(error, history), strict=True):
            assert text.startswith(f"rank {rank} ended with exit code 0, although rank ")
        (text,) = texts(judge.judge_error_path(history))
        assert text.startswith(f"rank {error.rank} did not raise after its error in step ")


@quick
@given(skipped(several), st.data())
def test_a_rank_that_made_no_step_has_not_skipped(error: Error, data: st.DataObject) -> None:
    """The rank failed before its first step; the others cannot have agreed with it."""
    rank = data.draw(others(st.sampled_from([r.rank for r in error.history]), error.rank))
    history = [
        record
        for record in error.history
        if not (isinstance(record, StepEnd | LoopEnd) and record.rank == rank)
    ]
    end = any_record(data, history, Ended, lambda e: e.rank == rank)
    history = changed(history, end, code=1, returned=False)
    assert len(judged(error, history)) == len([r for r in history if isinstance(r, Ended)]) - 1
    (text,) = texts(judge.judge_error_path([*history, Failed(rank, "e")]))
    assert text.startswith(f"rank {error.rank} did not raise")


@quick
@given(raised(several), st.data())
def test_any_other_way_than_to_raise_is_named(error: Error, data: st.DataObject) -> None:
    history = [r for r in error.history if not (isinstance(r, Failed) and r.rank == error.rank)]
    (text,) = texts(judge.judge_error_path(history))
    assert text.startswith(f"rank {error.rank} did not raise after its error in step {error.step}")
    (text,) = texts(judge.judge_error_path([*history, LoopEnd(error.rank, error.step)]))
    assert ", and left the loop" in text
    other = data.draw(others(st.sampled_from([r.rank for r in error.history]), error.rank))
    (text,) = texts(judge.judge_error_path([*error.history, LoopEnd(other, 4)]))
    assert text == (
        f"rank {other} ends well after 4 steps, although rank {error.rank} raised in step "
        f"{error.step}"
    )
