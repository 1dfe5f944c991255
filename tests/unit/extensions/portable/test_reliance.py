"""The decider of collectives that do not wait, on hand-made programs.

A program is a list for each rank: ``w`` is a collective of all, ``a`` one of ranks 0 and 1, ``>1``
a send to rank 1 and ``<0`` a receive from rank 0. ``w+`` issues without a wait, and ``w-`` waits
for what was issued so; ``w@1`` is of thread 1.
"""

from __future__ import annotations

import random

import pytest

from pytest_ddp.extensions.portable.orders import MatchKey
from pytest_ddp.extensions.portable.reliance import Blocked, cycle, read

ALL, PAIR = (0, 1, 2), (0, 1)


def sent(rank: int, program: str) -> dict[str, object]:
    """What the detector of a rank sends."""
    operations: list[tuple[object, ...]] = []
    log, begun = [], {}
    for place, word in enumerate(program.split()):
        text, _, thread = word.partition("@")
        what = text.rstrip("+-")
        if not text.endswith("-"):
            key = "collective", what, 0, 0, PAIR if what == "a" else ALL
            if what[0] in "<>":
                peer = int(what[1:])
                key = "message", "w", 0, 0, (rank, peer) if what[0] == ">" else (peer, rank)
            begun[what] = len(operations)
            log.append((int(thread or 0), len(operations), False))
            operations.append((*key, what, f"r{rank}:{place}"))
        if not text.endswith("+"):
            log.append((int(thread or 0), begun[what], True))
    return {"operations": operations, "log": log}


def found(*programs: str) -> list[Blocked]:
    return cycle({rank: read(rank, sent(rank, text)) for rank, text in enumerate(programs)})


LEGAL = {
    "in order": ("w w", "w >2 w", "w <1 w"),
    "a message before": ("w", ">2 w", "<1 w"),
    "a collective of others": ("a w", "a >2 w", "<1 w"),
    "a message in flight": ("w", "w >2", "<1+ w <1-"),
    "a collective in flight": ("w", "w+ >2 w-", "<1 w"),
    "unequal numbers": ("w w", "w >2", "<1 w"),
    "a message without its other end": ("w", "w >2", "w"),
    "another thread may do it": ("w", "w >2", "<1@1 w"),
    "nothing": ("", "", ""),
}


@pytest.mark.parametrize("programs", LEGAL.values(), ids=LEGAL)
def test_legal_programs(programs: tuple[str, ...]) -> None:
    assert found(*programs) == []


RELYING = {
    "a message after": (("w", "w >2", "<1 w"), [1, 2]),
    "the second one": (("w w w", "w w >2 w", "w <1 w w"), [1, 2]),
    "by way of another": (("<2 w", "w >2", "<1 >0 w"), [1, 0, 2]),
    "by way of a group of others": (("a w", "w a", "w"), [0, 1]),
    "a wait that comes too early": (("w", "w+ w- >2", "<1 w"), [1, 2]),
}


@pytest.mark.parametrize(("programs", "ring"), RELYING.values(), ids=RELYING)
def test_a_collective_that_must_not_wait(programs: tuple[str, ...], ring: list[int]) -> None:
    ranks = [one.rank for one in found(*programs)]
    assert sorted(ranks) == sorted(ring)
    assert found(*programs)[0].waits.key.kind == "collective"


def test_the_places_of_a_cycle() -> None:
    first, second = found("w", "w >2", "<1 w")
    assert (first.rank, first.waits.site, first.issues.site) == (1, "r1:0", "r2:1")
    assert (second.rank, second.waits.site, second.issues.site) == (2, "r2:0", "r1:1")
    assert first.waits.key == MatchKey("collective", "w", 0, 0, ALL)


def test_what_can_happen_one_after_the_other_is_legal() -> None:
    dice = random.Random(0)
    for _ in range(300):
        programs: list[list[str]] = [[], [], []]
        for _ in range(12):
            kind = dice.choice(("w", "a", "message"))
            if kind == "message":
                sender, receiver = dice.sample(ALL, 2)
                programs[sender].append(f">{receiver}")
                programs[receiver].append(f"<{sender}")
            else:
                for rank in PAIR if kind == "a" else ALL:
                    programs[rank].append(kind)
        assert found(*map(" ".join, programs)) == []
