"""What ranks show each other while a thread is held."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ddp.extensions.explore.ranks.board import HOLDS, Board, Field, State, Turn, size

RANKS = 3


@pytest.fixture
def boards(tmp_path: Path) -> list[Board]:
    """The board as each rank sees it, in one file."""
    path = tmp_path / "board"
    path.write_bytes(bytes(size(RANKS)))
    return [Board(str(path), rank, RANKS) for rank in range(RANKS)]


def test_a_rank_writes_its_row_and_all_read_it(boards: list[Board]) -> None:
    for rank, board in enumerate(boards):
        for field in Field:
            board.put(field, 10 * rank + field)
    for board in boards:
        for rank in range(RANKS):
            assert [board.get(rank, field) for field in Field] == [
                10 * rank + field for field in Field
            ]
    assert not boards[0].progress()


def test_all_compute_and_nobody_is_held_on_a_new_board(boards: list[Board]) -> None:
    assert State(boards[0].get(2, Field.STATE)) is State.COMPUTES
    assert not boards[0].is_any_held()
    assert {boards[0].turn(hold) for hold in range(HOLDS)} == {Turn.COMING}


def test_the_end_of_a_hold_keeps_how_far_all_were(boards: list[Board]) -> None:
    boards[1].passed(0)
    boards[1].passed(2)
    boards[2].begin_hold(7)
    assert boards[0].is_any_held()
    boards[2].end_hold(7, Turn.EXPIRED, 1.25)
    boards[1].passed(0)
    boards[0].end_hold(0, Turn.OVER, 0.5)
    seen = boards[0]
    assert (seen.turn(7), seen.seconds(7)) == (Turn.EXPIRED, 1.25)
    assert seen.progress_at_end(7) == {(1, 0): 1, (1, 2): 1}
    assert seen.progress_at_end(0) == seen.progress() == {(1, 0): 2, (1, 2): 1}
    assert not seen.is_any_held()


def test_threads_beyond_the_last_that_is_counted_are_left_out(boards: list[Board]) -> None:
    boards[0].passed(1000)
    assert not boards[0].progress()
    assert boards[1].get(1, Field.STATE) == 0
