"""The decider of order between groups, on hand-made histories.

A program is a list for each rank: operations in the order in which its threads issue them. ``a`` is
a collective of group ``a``, ``>1`` a send to rank 1 and ``<0`` a receive from rank 0 on the group
``world``; ``b@1`` is issued by thread 1; ``(`` and ``)`` enclose a batch; ``wait 1`` is thread 0
waiting for the last operation of thread 1.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Sequence

import pytest

from pytest_ddp.extensions.portable.orders import Inversion, Issue, MatchKey, inversions

WORLD = (0, 1, 2, 3)
MEMBERS = {"w": WORLD, "v": WORLD, "a": (0, 1), "b": (0, 1), "c": (0, 2), "d": (1, 2, 3)}


def history(rank: int, program: str) -> list[Issue]:
    found: list[Issue] = []
    places: Counter[int] = Counter()
    knows: dict[int, dict[int, int]] = {}
    batched = False
    for number, word in enumerate(program.replace("wait ", "wait").split()):
        if word in "()":
            places[0] += word == "("
            batched = word == "("
            continue
        if word.startswith("wait"):
            other = int(word.removeprefix("wait"))
            knows[0] = knows.get(0, {}) | {other: places[other]}
            continue
        what, _, name = word.partition("@")
        thread = int(name or 0)
        places[thread] += not batched
        match_key = MatchKey("collective", what, 0, 0, MEMBERS.get(what, ()))
        if what[0] in "<>":
            peer = int(what[1:])
            ends = (rank, peer) if what[0] == ">" else (peer, rank)
            match_key = MatchKey("message", "world", 0, 0, ends)
        site = f"r{rank}:{number}"
        found.append(Issue(match_key, what, site, thread, places[thread], knows.get(thread, {})))
    return found


def found(*programs: str) -> list[Inversion]:
    return list(inversions({rank: history(rank, text) for rank, text in enumerate(programs)}))


LEGAL = {
    "the same order": ("w a b", "w a b", "w", "w"),
    "many steps": ("w a " * 50, "w a " * 50, "w " * 50, "w " * 50),
    "groups that share one rank": ("c a", "a", "c", ""),
    "shifted by a step": ("w a w a w", "w a w a w", "w w w", "w w w"),
    "messages between collectives of a group of others": (
        "c >1 c <1 c",
        "<0 >0",
        "c c c",
        "",
    ),
    "a pipeline on world beside groups of one stage": (
        "a >2 a <2 a",
        "a >3 a <3 a",
        "<0 >0",
        "<1 >1",
    ),
    "messages of one group in any order": (">1 <1", ">0 <0", "", ""),
    "a batch and a collective after it": ("( >1 <1 ) w", "( <0 >0 ) w", "w", "w"),
    "a rank that is late": ("w w w a", "w w w a", "w w w", "w"),
    "two threads without an order": ("w a@1", "a@1 w", "w", "w"),
    "two threads without an order, one group each": ("w w a@1 a@1", "a@1 w a@1 w", "w w", "w w"),
    "two threads in order by a wait": ("w@1 wait 1 a", "w@1 wait 1 a", "w", "w"),
    "a wait on one rank alone proves nothing of the other": ("w@1 wait 1 a", "a w@1", "w", "w"),
    "one operation": ("w", "w", "w", "w"),
    "nothing": ("", "", "", ""),
}


@pytest.mark.parametrize("program", LEGAL.values(), ids=LEGAL.keys())
def test_legal(program: Sequence[str]) -> None:
    assert found(*program) == []


BROKEN = {
    "two lines swapped": ("w a", "a w", "w", "w"),
    "swapped in the second step": ("w a w a", "w a a w", "w w", "w w"),
    "far apart": ("a w w w w", "w w w w a", "w w w w", "w w w w"),
    "two groups of the same ranks": ("w v", "v w", "w v", "w v"),
    "on two ranks that are not the first": ("w", "d w", "w d", "d w"),
    "a message and a collective": (">1 w", "w <0", "w", "w"),
    "a message and a group of both ends": ("a >1", "<0 a", "", ""),
    "a batch and a collective": ("( >1 <1 ) w", "w ( <0 >0 )", "w", "w"),
    "two threads in order by a wait, and not": ("w@1 wait 1 a", "a w", "w", "w"),
    "two threads in opposite orders by waits": ("w@1 wait 1 a", "a@1 wait 1 w", "w", "w"),
}


@pytest.mark.parametrize("program", BROKEN.values(), ids=BROKEN.keys())
def test_broken(program: Sequence[str]) -> None:
    assert found(*program)


def test_the_lines_are_those_that_are_swapped() -> None:
    one, *others = found("w w a w", "w a w w", "w w w", "w w w")
    assert others == []
    assert one.ranks == (0, 1)
    assert [issue.site for issue in (*one.first, *one.second)] == ["r0:1", "r0:2", "r1:1", "r1:2"]
    assert [issue.name for issue in (*one.first, *one.second)] == ["w", "a", "a", "w"]


def _by_definition(one: list[Issue], other: list[Issue]) -> bool:
    """Whether any two operations are inverted, each pair looked at."""
    numbered = []
    for issues in (one, other):
        counts: Counter[MatchKey] = Counter()
        keys = {}
        for issue in issues:
            counts[issue.match_key] += 1
            keys[issue.match_key, counts[issue.match_key]] = issue
        numbered.append(keys)
    mine, theirs = numbered
    both = [key for key in mine if key in theirs and {0, 1} <= {*key[0].members}]
    return any(
        mine[y].comes_after(mine[x]) and theirs[x].comes_after(theirs[y])
        for x, y in itertools.permutations(both, 2)
        if not x[0].kind == y[0].kind == "message"
    )


def test_random_programs_as_by_definition() -> None:
    found = [_agrees_with_definition(random.Random(seed)) for seed in range(1000)]
    assert 100 < sum(found) < 900


def _agrees_with_definition(draw: random.Random) -> bool:
    """Whether a drawn program is broken, by both."""
    words = [*"wvab", *("w@1", "a@1"), ">1", "<1"][: draw.randint(2, 8)]
    programs = []
    drawn = [draw.choice(words) for _ in range(draw.randint(2, 8))]
    for rank in (0, 1):
        mine = [*drawn]
        for _ in range(draw.randint(0, 2)):  # swaps of neighbours
            place = draw.randrange(len(mine) - 1)
            mine[place : place + 2] = reversed(mine[place : place + 2])
        mine.insert(draw.randrange(len(mine)), "wait 1")
        text = " ".join(mine)
        flip = {">1": "<0", "<1": ">0"}
        programs.append(text if rank == 0 else " ".join(flip.get(w, w) for w in text.split()))
    one, other = history(0, programs[0]), history(1, programs[1])
    is_broken = _by_definition(one, other)
    assert bool(list(inversions({0: one, 1: other}))) == is_broken, programs
    return is_broken
