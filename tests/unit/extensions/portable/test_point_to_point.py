"""Messages whose order is wrong on NCCL, and those that are right."""

from __future__ import annotations

import random

import pytest

from pytest_ddp.extensions.portable.point_to_point import Message, mismatches


def _rank(text: str) -> list[Message]:
    """``s1 r2 s1#7=8 (s1 r1)``: sends and receives, their peer, tag and bytes, batches in
    parentheses."""
    messages, is_batched = [], False
    for place, word in enumerate(text.split()):
        is_batched |= word.startswith("(")
        ends, _, nbytes = word.strip("()").partition("=")
        what, _, tag = ends.partition("#")
        peer = -1 if what[1:] == "*" else int(what[1:])
        is_send, line = what[0] == "s", f"line {place + 1}"
        messages.append(
            Message(
                *("world", peer, is_send, int(tag or 0), is_batched, 1, line),
                nbytes=int(nbytes or 0),
            )
        )
        is_batched &= not word.endswith(")")
    return messages


def _found(*ranks: str) -> list[tuple[str, tuple[int, ...], tuple[str, ...]]]:
    everything = {rank: _rank(text) for rank, text in enumerate(ranks)}
    return [
        (found.row, found.ranks, tuple(message.site for message in found.messages))
        for found in mismatches(everything)
    ]


@pytest.mark.parametrize(
    "ranks",
    [
        ("s1 r1", "r0 s0"),
        ("s1 s1 r1", "r0 r0 s0"),
        ("(s1 r1)", "(s0 r0)"),
        ("(s1) (s1)", "(r0 r0)"),
        ("s1#1 s1#2", "r0#1 r0#2"),
        ("s1#1 r1#1 s1#2", "r0#1 s0#1 r0#2"),
        ("s1 r2", "r0 s2", "r1 s0"),  # a ring that one rank breaks
        ("(s1 r2)", "(s2 r0)", "(s0 r1)"),
        ("s1 r1 s1 r1", "r0 s2 r2 s0 r0 s2 r2 s0", "r1 s1 r1 s1"),  # a pipeline
        ("s1=8 r1=4", "r0=8 s0=4"),
        ("s1#1=8 s1#2=4", "r0#1=8 r0#2=4"),
        ("s1=4", "r*=8"),
        ("s1", "r*"),
        ("s1", ""),
        ("", ""),
        ("s0", ""),
    ],
)
def test_legal_orders_are_not_accused(ranks: tuple[str, ...]) -> None:
    assert _found(*ranks) == []


@pytest.mark.parametrize(
    ("ranks", "found"),
    [
        (("s1 r1", "s0 r0"), ("head to head", (0, 1), ("line 1", "line 1"))),
        (("r1 s1", "r0 s0"), ("head to head", (0, 1), ("line 1", "line 1"))),
        (("s1 r1 s1 r1", "r0 s0 s0 r0"), ("head to head", (0, 1), ("line 3", "line 3"))),
        (("s1#1 s1#2", "r0#2 r0#1"), ("tags", (0, 1), ("line 1", "line 1"))),
        (("r1#2 r1#1", "s0#1 s0#2"), ("tags", (1, 0), ("line 1", "line 1"))),
        (("(s1#1 s1#2)", "(r0#2 r0#1)"), ("tags", (0, 1), ("line 1", "line 1"))),
        (("s1=8 s1=4", "r0=8 r0=8"), ("room", (0, 1), ("line 2", "line 2"))),
        (("r1=8 s1=4", "s0=0 r0=4"), ("room", (1, 0), ("line 1", "line 1"))),
        (("(s1=8 r1=8)", "(s0=4 r0=8)"), ("room", (1, 0), ("line 1", "line 2"))),
        (("s1 r2", "s2 r0", "s0 r1"), ("ring", (0, 1, 2), ("line 1", "line 1", "line 1"))),
    ],
)
def test_wrong_orders_are_named(
    ranks: tuple[str, ...], found: tuple[str, tuple[int, ...], tuple[str, ...]]
) -> None:
    assert _found(*ranks) == [found]


def test_lines_of_a_loop_are_told_apart() -> None:
    ranks = [_rank(text) for text in ("s1 r2 s1 r2", "s2 r0 s2 r0", "s0 r1 s0 r1")]
    same = {
        rank: [m._replace(site="same") for m in messages] for rank, messages in enumerate(ranks)
    }
    assert [found.row for found in mismatches(same)] == ["ring"]


def test_two_threads_have_no_order() -> None:
    mine, theirs = _rank("s1 r1"), _rank("s0 r0")
    mine[1] = mine[1]._replace(thread=2)
    assert list(mismatches({0: mine, 1: theirs})) == []


def test_what_a_rendezvous_can_run_is_never_accused() -> None:
    """Programs made by running messages one by one, each at both of its ends."""
    for seed in range(300):
        chance = random.Random(seed)
        size = chance.randint(2, 5)
        ranks: list[list[str]] = [[] for _ in range(size)]
        for _ in range(chance.randint(1, 20)):
            source, target = chance.sample(range(size), 2)
            for _ in range(chance.randint(1, 3)):  # a loop repeats a line
                tag = chance.randint(0, 2)
                ranks[source].append(f"s{target}#{tag}")
                ranks[target].append(f"r{source}#{tag}")
        assert _found(*map(" ".join, ranks)) == [], seed
