"""Groups whose first collective is a batch on some members alone."""

from __future__ import annotations

import pytest

from pytest_ddp.extensions.portable.first_batches import FirstOperation, partial_batches


def found(*ranks: str) -> list[str]:
    """``pipe:b world:c``: the first operation of a rank on each group, a batch or a collective."""
    everyone = tuple(range(len(ranks)))
    firsts = {
        rank: [
            FirstOperation(word[:-2], word[:-2], everyone, word.endswith("b"), word, "a.py:1")
            for word in text.split()
        ]
        for rank, text in enumerate(ranks)
    }
    return [one.label for one in partial_batches(firsts)]


@pytest.mark.parametrize(
    "ranks",
    [
        ("pipe:b", "pipe:b", "pipe:b"),
        ("pipe:c", "pipe:c", "pipe:c"),
        ("pipe:c", "pipe:c", ""),  # a collective that is missing has its own verdict
        ("", "", ""),
        ("pipe:b world:c", "pipe:b world:c", "world:c pipe:b"),
    ],
)
def test_groups_that_all_begin_with_one_kind(ranks: tuple[str, ...]) -> None:
    assert found(*ranks) == []


@pytest.mark.parametrize(
    ("ranks", "groups"),
    [
        (("pipe:b", "pipe:b", ""), ["pipe"]),
        (("pipe:b", "pipe:b", "pipe:c"), ["pipe"]),
        (("", "pipe:b", ""), ["pipe"]),
        (("pipe:b world:b", "pipe:b world:c", "pipe:b world:c"), ["world"]),
        (("", "b:b", "a:b"), ["b", "a"]),
    ],
)
def test_groups_that_some_begin_with_a_batch(ranks: tuple[str, ...], groups: list[str]) -> None:
    assert found(*ranks) == groups
