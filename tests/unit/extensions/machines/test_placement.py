"""Which machine each rank is on."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pytest_ddp.extensions.machines.rank_layout import all_room, place_by_room, place_ranks


@pytest.mark.parametrize(
    ("world_size", "asked", "nodes", "most", "expected"),
    [
        (4, None, 2, None, (0, 0, 1, 1)),
        (5, None, 2, None, (0, 0, 0, 1, 1)),
        (2, None, 2, None, (0, 1)),
        (1, None, 2, None, (0,)),
        (2, None, 3, None, (0, 1)),
        (4, 1, 2, None, (0, 0, 0, 0)),
        (4, 2, 3, None, (0, 0, 1, 1)),
        (4, None, 2, 4, (0, 0, 0, 0)),
        (4, None, 2, 3, (0, 0, 0, 1)),
        (4, None, 4, 2, (0, 0, 1, 1)),
        (4, 2, 2, 3, (0, 0, 1, 1)),
        (8, 3, 3, 3, (0, 0, 0, 1, 1, 1, 2, 2)),
        (128, None, 16, None, tuple(rank // 8 for rank in range(128))),
        (128, None, 2, None, (0,) * 64 + (1,) * 64),
    ],
)
def test_ranks_fill_machines_in_order(
    world_size: int, asked: int | None, nodes: int, most: int | None, expected: tuple[int, ...]
) -> None:
    assert place_ranks(world_size, asked, nodes, most) == expected


@pytest.mark.parametrize(
    ("world_size", "asked", "nodes", "most", "words"),
    [
        (4, 3, 2, None, "nodes=3: 3 machines needed, 2 in this session"),
        (9, None, 2, 4, "9 ranks, at most 4 on one: 3 machines needed, 2 in this session"),
        (129, None, 2, None, "129 ranks, at most 64 on one: 3 machines needed, 2 in this session"),
        (8, 1, 2, 4, "nodes=1: 8 ranks on one machine needed, at most 4 allowed"),
    ],
)
def test_too_few_machines_are_told_with_the_numbers(
    world_size: int, asked: int, nodes: int, most: int | None, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        place_ranks(world_size, asked, nodes, most)


@pytest.mark.parametrize(
    ("world_size", "asked", "room", "most", "expected"),
    [
        (4, None, (2, 2), None, (0, 0, 1, 1)),
        (4, None, (4, 4), None, (0, 0, 1, 1)),
        (5, None, (4, 4), None, (0, 0, 0, 1, 1)),
        (2, None, (4, 1), None, (0, 1)),
        (3, None, (4, 1), None, (0, 0, 1)),
        (5, None, (4, 1), None, (0, 0, 0, 0, 1)),
        (5, None, (1, 4), None, (0, 1, 1, 1, 1)),
        (7, None, (1, 4, 2), None, (0, 1, 1, 1, 1, 2, 2)),
        (6, None, (1, 4, 2), None, (0, 1, 1, 1, 2, 2)),
        (2, None, (0, 4), None, (1, 1)),
        (3, None, (0, 4, 2), None, (1, 1, 2)),
        (2, None, (1, 1, 4), None, (0, 1)),
        (4, 1, (4, 8), None, (0, 0, 0, 0)),
        (5, 1, (4, 8), None, (1, 1, 1, 1, 1)),
        (2, 1, (0, 2), None, (1, 1)),
        (4, 2, (1, 0, 2, 2), None, (2, 2, 3, 3)),
        (3, 2, (1, 0, 2, 2), None, (0, 2, 2)),
        (4, None, (8, 8), 3, (0, 0, 0, 1)),
        (4, None, (2, 8), 3, (0, 0, 1, 1)),
        (4, None, (1, 1, 8), 3, (0, 1, 2, 2)),
        (6, 2, (8, 8), 3, (0, 0, 0, 1, 1, 1)),
        (100, None, (80, 80), None, (0,) * 50 + (1,) * 50),
        (5, None, (4, 0), None, None),
        (6, None, (4, 1), None, None),
        (5, 1, (4, 4), None, None),
        (2, 2, (4, 0), None, None),
        (7, None, (8, 8), 3, None),
        (130, None, (80, 80), None, None),
    ],
)
def test_ranks_go_where_there_is_room(
    world_size: int,
    asked: int | None,
    room: tuple[int, ...],
    most: int | None,
    expected: tuple[int, ...] | None,
) -> None:
    assert place_by_room(world_size, asked, room, most) == expected


@settings(deadline=None)
@given(
    world_size=st.integers(1, 40),
    room=st.lists(st.integers(0, 12), min_size=1, max_size=5),
    asked=st.none() | st.integers(1, 5),
    most=st.none() | st.integers(1, 12),
)
def test_no_machine_gets_more_than_it_has_room_for(
    world_size: int, room: list[int], asked: int | None, most: int | None
) -> None:
    assume(asked is None or asked <= world_size)
    limits = [min(size, most or size) for size in room]
    largest = sorted(limits, reverse=True)[: asked or len(room)]
    fits = sum(largest) >= world_size and largest.count(0) in ((0,) if asked else range(9))
    fits = fits and len(largest) == (asked or len(room))
    nodes = place_by_room(world_size, asked, room, most)
    assert (nodes is not None) == fits
    if nodes is not None:
        assert len(nodes) == world_size
        assert list(nodes) == sorted(nodes)
        assert all(nodes.count(node) <= limit for node, limit in enumerate(limits))
        assert asked is None or len({*nodes}) == asked


@pytest.mark.parametrize(
    ("asked", "room", "most", "expected"),
    [
        (None, (4, 1, 0), None, 5),
        (None, (4, 1, 0), 3, 4),
        (1, (0, 4, 1), None, 4),
        (2, (0, 4, 1), None, 5),
        (3, (0, 4, 1), None, 0),
        (None, (80, 1), None, 65),
    ],
)
def test_all_room(
    asked: int | None, room: tuple[int, ...], most: int | None, expected: int
) -> None:
    assert all_room(asked, room, most) == expected
