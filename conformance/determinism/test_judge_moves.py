"""The judge of runs that go on with another number of ranks, on hand-made histories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from ddp_conformance.determinism.history import (
    LoopParameters,
    LoopRaised,
    LoopRounding,
    LoopStep,
    Sketch,
)
from ddp_conformance.determinism.judge_moves import Move, judge_end, judge_move, opens_nothing
from ddp_conformance.framework.allowance import Terms

SIZE = 4
FIRST, SAVED = Sketch("weight", "first", 1.0, 0.5), Sketch("weight", "saved", 1.0, 0.25)
LAST, OTHER = Sketch("weight", "last", 1.0, 0.0), Sketch("weight", "other", 1.0, 1.0)
GLOBAL = Terms(frozenset({"global_batch"}))
NOTHING = Terms()
TO_ONE, TO_ALL = Move("mid-epoch", 2, 1), Move("mid-epoch", 1, 2)
Steps = Sequence[tuple[int, Sequence[int]]]
"""The epoch of each step, and the samples of all ranks together."""


def leg(run: str, ranks: int, steps: Steps, begin: Sketch = FIRST, end: Sketch = LAST) -> list[Any]:
    """Samples are dealt out to ranks in turn; several have a wrapper."""
    history: list[Any] = []
    for rank in range(ranks):
        name = "module.weight" if ranks > 1 else "weight"
        history.append(LoopParameters(rank, run, "begin", (replace(begin, name=name),)))
        for epoch, ids in steps:
            history.append(LoopStep(rank, run, epoch, tuple(ids[rank::ranks]), ()))
        history.append(LoopParameters(rank, run, "end", (replace(end, name=name),)))
    return history


BEFORE: Steps = [(0, [0, 1]), (0, [2, 3]), (1, [3, 2])]
AFTER: Steps = [(1, [1, 0])]
WHOLE = leg("whole", 2, [*BEFORE, *AFTER])


def moved(
    move: Move,
    after: Steps = AFTER,
    *,
    before: Steps = BEFORE,
    begin: Sketch = SAVED,
    end: Sketch = LAST,
) -> list[Any]:
    saved = leg(move.saved, move.before, before, end=SAVED)
    return [*saved, *leg(move.resumed, move.after, after, begin, end)]


def texts(history: Sequence[Any], move: Move, terms: Terms = GLOBAL) -> list[str]:
    return [str(one) for one in judge_move(history, move, SIZE, terms)]


both = pytest.mark.parametrize("move", [TO_ONE, TO_ALL])


@both
def test_the_same_run_passes(move: Move) -> None:
    history = [*WHOLE, *moved(move)]
    assert texts(history, move) == texts(history, move, NOTHING) == []
    assert judge_end(history, move) == ()


@both
def test_another_begin_is_named(move: Move) -> None:
    named = [
        f"{move.resumed}: rank {rank} begins with another weight than the run had when it was saved"
        for rank in range(move.after)
    ]
    assert texts([*WHOLE, *moved(move, begin=OTHER)], move) == named
    assert texts(moved(move, begin=OTHER), move, NOTHING) == named


def test_a_parameter_that_no_rank_goes_on_with_is_named() -> None:
    saved = leg(TO_ALL.saved, 1, BEFORE, end=SAVED)
    both_ends = (SAVED, replace(SAVED, name="expert"))
    saved[-1] = replace(saved[-1], sketches=both_ends)
    resumed = leg(TO_ALL.resumed, 2, AFTER, begin=SAVED)
    lost = f"{TO_ALL.resumed}: no rank begins with expert, which the run had"
    assert texts([*saved, *resumed], TO_ALL, NOTHING) == [lost]
    begin = next(r for r in resumed if r.rank == 1 and getattr(r, "when", "") == "begin")
    resumed[resumed.index(begin)] = replace(begin, sketches=both_ends[1:])
    assert texts([*saved, *resumed], TO_ALL, NOTHING) == []


def test_begins_that_are_not_reported_are_named() -> None:
    silent = [one for one in moved(TO_ONE) if getattr(one, "when", "") != "begin"]
    assert texts([*WHOLE, *silent], TO_ONE) == [
        f"{TO_ONE.resumed}: rank 0 reports no initial parameters"
    ]


@both
def test_other_samples_of_a_step_are_named(move: Move) -> None:
    wrong = moved(move, [(1, [1, 2])])
    assert texts([*WHOLE, *wrong], move) == [
        f"{move.resumed}: step 3: samples [1, 2] in epoch 1, not samples [0, 1] in epoch 1"
    ]
    assert texts([*WHOLE, *moved(move, [])], move) == [
        f"{move.resumed}: step 3: nothing, not samples [0, 1] in epoch 1"
    ]
    assert texts(moved(move, [], before=[]), move) == ["the loop made no step"]


@both
def test_another_order_in_a_step_passes(move: Move) -> None:
    assert texts([*WHOLE, *moved(move, [(1, [0, 1])])], move) == []


@both
def test_an_epoch_is_counted_over_both_legs(move: Move) -> None:
    early = moved(move, [(1, [1, 0]), (1, [3, 2]), (1, [0, 1])])
    assert texts(early, move, NOTHING) == [
        f"epoch 1: {move.resumed}: 4 of 4 samples come too often, index 0 2 times"
    ]
    assert texts(moved(move, []), move, NOTHING) == [
        f"epoch 1: {move.resumed}: 2 of 4 samples come too rarely, index 0 never"
    ]
    assert texts(moved(move, [], before=[]), move, NOTHING) == ["the loop made no step"]


@both
def test_as_few_as_padding_repeats_are_no_fault(move: Move) -> None:
    assert texts(moved(move, [(1, [1, 0, 3])]), move, NOTHING) == []
    assert texts(moved(move, [(1, [1])]), move, NOTHING) == []


@both
@pytest.mark.parametrize("trait", ["replacement", "endless"])
def test_draws_are_not_counted(move: Move, trait: str) -> None:
    draws = moved(move, [(1, [1, 1, 1, 1])])
    assert texts(draws, move, Terms(frozenset({trait}))) == []


@both
def test_copies_are_counted(move: Move) -> None:
    twice = [(epoch, [*ids, *ids]) for epoch, ids in [*BEFORE, *AFTER]]
    history = moved(move, twice[3:], before=twice[:3])
    assert texts(history, move, Terms(copies=2)) == []
    assert len(texts(history, move, NOTHING)) == 2


@both
def test_refused_by_all_before_a_step_passes(move: Move) -> None:
    saved = leg(move.saved, move.before, BEFORE)
    raised = [LoopRaised(rank, move.resumed, "ValueError: no") for rank in range(move.after)]
    assert texts([*WHOLE, *saved, *raised], move) == []
    assert judge_end([*WHOLE, *saved, *raised], move) == ()
    late = leg(move.resumed, 1, AFTER)[1:2]
    assert texts([*WHOLE, *saved, *raised, *late], move) == [
        f"{move.resumed}: rank 0 makes 1 step before it raises ValueError: no"
    ]


def test_a_rank_that_goes_on_where_another_refuses_is_named() -> None:
    history = [*WHOLE, *moved(TO_ALL), LoopRaised(1, TO_ALL.resumed, "ValueError: no")]
    assert texts(history, TO_ALL) == [
        f"{TO_ALL.resumed}: rank 0 goes on, and rank 1 raises ValueError: no"
    ]


@both
def test_final_parameters_are_those_of_the_whole_run_but_for_rounding(move: Move) -> None:
    def ends(end: Sketch, *measured: float) -> list[str]:
        limits = [LoopRounding(0, (("module.weight", far),)) for far in measured]
        found = judge_end([*WHOLE, *moved(move, end=end), *limits], move)
        return [str(one) for one in found]

    named = [f"{move.resumed}: ends with another weight"]
    assert ends(replace(LAST, digest="near", projection=0.9e-5)) == []
    assert ends(replace(LAST, digest="far", projection=1.1e-5)) == named
    assert ends(replace(LAST, digest="far", projection=1.1e-5), 0.9e-5) == []
    assert ends(OTHER, 0.2) == named
    assert ends(OTHER, 0.3) == []
    assert ends(replace(LAST, digest="nan", norm=float("nan")), 0.3) == named
    assert ends(replace(LAST, digest="inf", norm=float("inf")), 0.3) == named


def test_final_parameters_that_are_not_reported_are_named() -> None:
    silent = [one for one in moved(TO_ONE) if getattr(one, "when", "") != "end"]
    (found,) = judge_end([*WHOLE, *silent], TO_ONE)
    assert str(found) == f"{TO_ONE.resumed}: ends with another weight"
    (found,) = judge_end(silent, TO_ONE)
    assert str(found) == f"{TO_ONE.resumed}: no rank reports final parameters"


def test_a_loop_that_needs_no_checkpoint_is_reported() -> None:
    def reason(begin: Sketch) -> str:
        return opens_nothing([*moved(TO_ONE), *leg(TO_ONE.emptied, 1, AFTER, begin)], [TO_ONE])

    assert opens_nothing([*moved(TO_ONE), LoopRaised(0, TO_ONE.emptied, "no")], [TO_ONE]) == ""
    assert reason(FIRST) == "", "it begins as a new run does"
    assert reason(SAVED) == "goes on as well without any file of its checkpoint"
    assert reason(LAST) == "goes on as well without any file of its checkpoint"
    anew = moved(TO_ONE, begin=FIRST)
    emptied = leg(TO_ONE.emptied, 1, AFTER, FIRST)
    assert opens_nothing([*anew, *emptied], [TO_ONE]) != "", "it begins anew with a checkpoint, too"
