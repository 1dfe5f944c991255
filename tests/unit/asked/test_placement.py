"""Which machine each rank is on."""

from __future__ import annotations

import pytest

from pytest_ddp.asked.placement import place


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
    assert place(world_size, asked, nodes, most) == expected


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
        place(world_size, asked, nodes, most)
