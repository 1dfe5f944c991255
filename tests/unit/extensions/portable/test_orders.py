"""The deciders of orders on hand-made programs, in the words of ``programs.py``."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest

from pytest_ddp.extensions.portable.issued import History, MatchKey
from pytest_ddp.extensions.portable.orders import Blocked, Inversion, cycle, inversions
from tests.unit.extensions.portable.programs import histories, history

# ------------------------------------------------------------------ between groups

WORLD = (0, 1, 2, 3)
MEMBERS = {"w": WORLD, "v": WORLD, "a": (0, 1), "b": (0, 1), "c": (0, 2), "d": (1, 2, 3)}


def found(*programs: str) -> list[Inversion]:
    return list(inversions(histories(programs, MEMBERS)))


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


def _by_definition(one: History, other: History) -> bool:
    """Whether any two operations are inverted, each pair looked at."""
    mine, theirs = ({(i.key, i.number): i for i in each.issues} for each in (one, other))
    both = [key for key in mine if key in theirs and {0, 1} <= {*key[0].ends}]
    return any(
        mine[y].comes_after(mine[x]) and theirs[x].comes_after(theirs[y])
        for x, y in itertools.permutations(both, 2)
        if not (x[0].is_message and y[0].is_message)
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
        mine.insert(0, "x@1")  # so that there is something to wait for
        text = " ".join(mine)
        flip = {">1": "<0", "<1": ">0"}
        programs.append(text if rank == 0 else " ".join(flip.get(w, w) for w in text.split()))
    one, other = history(0, programs[0], MEMBERS), history(1, programs[1], MEMBERS)
    is_broken = _by_definition(one, other)
    assert bool(list(inversions({0: one, 1: other}))) == is_broken, programs
    return is_broken


# ------------------------------------------------------------------ around a collective

ALL, PAIR = (0, 1, 2), (0, 1)


def relying(*programs: str) -> list[Blocked]:
    ranks = histories(programs, {"w": ALL, "a": PAIR})
    return cycle({rank: one.steps for rank, one in ranks.items()})


WAITING = {
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


@pytest.mark.parametrize("programs", WAITING.values(), ids=WAITING)
def test_collectives_may_wait(programs: tuple[str, ...]) -> None:
    assert relying(*programs) == []


RELYING = {
    "a message after": (("w", "w >2", "<1 w"), [1, 2]),
    "the second one": (("w w w", "w w >2 w", "w <1 w w"), [1, 2]),
    "by way of another": (("<2 w", "w >2", "<1 >0 w"), [1, 0, 2]),
    "by way of a group of others": (("a w", "w a", "w"), [0, 1]),
    "a wait that comes too early": (("w", "w+ w- >2", "<1 w"), [1, 2]),
}


@pytest.mark.parametrize(("programs", "ring"), RELYING.values(), ids=RELYING)
def test_a_collective_that_must_not_wait(programs: tuple[str, ...], ring: list[int]) -> None:
    ranks = [one.waits.rank for one in relying(*programs)]
    assert sorted(ranks) == sorted(ring)
    assert not relying(*programs)[0].waits.key.is_message


def test_the_places_of_a_cycle() -> None:
    first, second = relying("w", "w >2", "<1 w")
    assert (first.waits.rank, first.waits.site, first.issues.site) == (1, "r1:0", "r2:1")
    assert (second.waits.rank, second.waits.site, second.issues.site) == (2, "r2:0", "r1:1")
    assert first.waits.key == MatchKey("w", ALL, None)


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
        assert relying(*map(" ".join, programs)) == []
