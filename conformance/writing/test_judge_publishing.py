"""The judges of publishing, guards and preparation on hand-made histories."""

from __future__ import annotations

import pytest
from ddp_conformance.framework.history import Failed
from ddp_conformance.writing import judge_publishing as judge
from ddp_conformance.writing.history import Glimpse, Guarded, Opened, Prepared, Saw, SetUp

ALL = (0, 1)


def test_files_of_one_rank_pass() -> None:
    assert judge.judge_shared_files([Opened(0, "a"), Opened(0, "a"), Opened(1, "b")]) == ()


def test_files_of_two_ranks_are_named() -> None:
    (violation,) = judge.judge_shared_files([Opened(2, "a"), Opened(0, "a"), Opened(1, "b")])
    assert str(violation) == "a is written by the code of ranks 0 and 2"


def test_of_ranks_that_try_what_one_may_do_one_writes() -> None:
    tried = [Opened(rank, "a", claim="/") for rank in (0, 1)]
    assert judge.judge_shared_files(tried) == ()
    (violation,) = judge.judge_shared_files([*tried, Opened(2, "a")])
    assert str(violation) == "a is written by the code of ranks 0, 1 and 2"
    moved = [Opened(0, "a", claim="offer", own=True), Opened(1, "a", claim="offer")]
    assert judge.judge_shared_files(moved) == ()
    assert len(judge.judge_shared_files([*moved, Opened(2, "a", claim="other")])) == 1
    assert len(judge.judge_shared_files([*moved, Opened(2, "a", claim="offer", own=True)])) == 1


def test_a_lock_may_be_many_ranks_and_a_lock_of_some_of_them_may_not() -> None:
    locked = [Opened(rank, "lock", lock=True) for rank in (0, 1)]
    assert judge.judge_shared_files(locked) == ()
    (violation,) = judge.judge_shared_files([*locked, Opened(2, "lock")])
    assert str(violation) == "lock is written by the code of ranks 0, 1 and 2"


@pytest.mark.parametrize("last", [0, 1])
def test_the_last_record_or_the_one_before_passes(last: int) -> None:
    assert judge.judge_atomic([Glimpse(0, 1, last)]) == ()


def test_what_was_half_there_is_named_once_for_each_record() -> None:
    history = [Glimpse(0, 1, -1, "ValueError: x", "save.py:3"), Glimpse(0, 1, -1), Glimpse(0, 0, 2)]
    assert [str(violation) for violation in judge.judge_atomic(history)] == [
        "while rank 0 makes record 1, after save.py:3: the files cannot be read: ValueError: x",
        "while rank 0 makes record 0: the last record is 2",
    ]


def test_files_without_a_record_have_no_last_one_in_the_text() -> None:
    (violation,) = judge.judge_atomic([Glimpse(0, 2, -1, "", "save.py:3")])
    assert str(violation) == (
        "while rank 0 makes record 2, after save.py:3: no record can be read, not even 1"
    )


def saw(rank: int, last: int, problem: str = "") -> Saw:
    return Saw(rank, 0, last, 1, problem)


def test_all_ranks_in_time_pass() -> None:
    assert judge.judge_in_time([saw(0, 0), saw(1, 0)], 1, 2) == ()


def test_what_was_read_too_early_is_named() -> None:
    history = [saw(0, -1), saw(1, 0, "EOFError: x")]
    assert [str(violation) for violation in judge.judge_in_time(history, 1, 3)] == [
        "rank 0 reads no record in place of 0, rank 1 coming last",
        "rank 1 cannot read record 0, rank 1 coming last: EOFError: x",
        "rank 2 never returned from record 0: the ranks' collectives differ",
    ]


def test_one_rank_that_acts_passes_and_may_refuse_elsewhere() -> None:
    acts = [Guarded(r, "group", r == 0) for r in ALL]
    assert judge.judge_guard(acts) == ()
    refused = [Guarded(r, "start", False, "RuntimeError: x") for r in ALL]
    assert judge.judge_guard([*acts, *refused]) == ()


@pytest.mark.parametrize(("ran", "words"), [((0, 1), "ranks 0 and 1 acted"), ((), "no rank acted")])
def test_other_numbers_of_ranks_are_named(ran: tuple[int, ...], words: str) -> None:
    (violation,) = judge.judge_guard([Guarded(r, "start", r in ran) for r in ALL])
    assert str(violation) == f"start: {words}"


def test_refusing_alone_is_named() -> None:
    history = [Guarded(0, "start", True), Guarded(1, "start", False, "KeyError: 'RANK'")]
    (violation,) = judge.judge_guard(history)
    assert str(violation) == "start: rank 0 acted, rank 1 raised KeyError: 'RANK'"


def test_each_machine_has_one_that_acts_where_that_is_declared() -> None:
    alone = [Guarded(r, "a", r == 0) for r in range(4)]
    both = [Guarded(r, "b", r in (0, 2), machine=r // 2) for r in range(4)]
    assert judge.judge_guard([*alone, *both], each_machine=True) == ()
    (violation,) = judge.judge_guard([*alone, *both])
    assert str(violation) == "b: ranks 0 and 2 acted"
    first = [Guarded(r, "b", r == 0, machine=r // 2) for r in range(4)]
    (violation,) = judge.judge_guard([*alone, *first], each_machine=True)
    assert str(violation) == "b, machine 1: no rank acted"
    other = [Guarded(r, "b", r in (0, 3), machine=r // 2) for r in range(4)]
    (violation,) = judge.judge_guard(other, each_machine=True)
    assert str(violation) == (
        "another rank acts from stage to stage: b: local rank 0; b, machine 1: local rank 1"
    )


def test_refusing_everywhere_is_no_pass() -> None:
    (violation,) = judge.judge_guard([Guarded(r, "a", False, "E") for r in ALL])
    assert str(violation) == "all ranks refuse in every stage"


def test_prepared_once_and_set_up_everywhere_passes() -> None:
    history = [Prepared(0, False), SetUp(0, True), SetUp(1, True), Opened(1, "own", "setup")]
    assert judge.judge_preparation(history, range(2)) == ()


def test_no_preparation_at_all_passes() -> None:
    assert judge.judge_preparation([SetUp(0, False), SetUp(1, False)], range(2)) == ()


def test_everything_wrong_is_named() -> None:
    history = [
        Prepared(0, False),
        Prepared(1, True),
        SetUp(1, False),
        Failed(1, "RuntimeError: x"),
        Opened(0, "data", "setup"),
        Opened(1, "data", "setup"),
    ]
    assert [str(violation) for violation in judge.judge_preparation(history, range(2))] == [
        "prepare_data ran 2 times, on ranks 0 and 1",
        "prepare_data ran on rank 1 when setup had begun there",
        "setup began on rank 1 before prepare_data had ended",
        "rank 1 cannot be set up: RuntimeError: x",
        "setup never began on rank 0",
        "data is written by the code of ranks 0 and 1 in setup",
    ]


def test_a_rank_that_was_never_set_up_is_named() -> None:
    """Ranks that diverge leave without a word."""
    (violation,) = judge.judge_preparation([Prepared(0, False), SetUp(0, True)], range(2))
    assert str(violation) == "setup never began on rank 1"


def test_all_that_was_read_is_judged_though_a_rank_read_twice() -> None:
    (violation,) = judge.judge_in_time([saw(0, -1), saw(0, 0), saw(1, 0)], 1, 2)
    assert str(violation) == "rank 0 reads no record in place of 0, rank 1 coming last"


def test_a_rank_that_never_asked_in_a_stage_is_named() -> None:
    stages = [*(Guarded(r, "a", r == 0) for r in ALL), Guarded(0, "b", True)]
    (violation,) = judge.judge_guard(stages)
    assert str(violation) == "b: rank 1 never called the guard"


def test_no_answer_at_all_is_no_refusal() -> None:
    (violation,) = judge.judge_guard([])
    assert str(violation) == "no rank called the guard"
