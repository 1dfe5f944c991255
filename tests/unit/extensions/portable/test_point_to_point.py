"""Messages that go together on NCCL and those that do not, in the words of ``programs.py``."""

from __future__ import annotations

import random
import re

import pytest

from pytest_ddp.extensions.portable.point_to_point import mismatches, partial_batches
from tests.unit.extensions.portable.programs import histories


def _found(*ranks: str) -> list[tuple[str, tuple[str, ...]]]:
    return [
        (found.row, tuple(message.site for message in found.messages))
        for found in mismatches(histories(ranks, {}))
    ]


@pytest.mark.parametrize(
    "ranks",
    [
        (">1 <1", "<0 >0"),
        (">1 >1 <1", "<0 <0 >0"),
        ("(>1 <1)", "(>0 <0)"),
        ("(>1) (>1)", "(<0 <0)"),
        (">1#1 >1#2", "<0#1 <0#2"),
        (">1#1 <1#1 >1#2", "<0#1 >0#1 <0#2"),
        (">1 <2", "<0 >2", "<1 >0"),  # a ring that one rank breaks
        ("(>1 <2)", "(>2 <0)", "(>0 <1)"),
        (">1 <1 >1 <1", "<0 >2 <2 >0 <0 >2 <2 >0", "<1 >1 <1 >1"),  # a pipeline
        (">1=8 <1=4", "<0=8 >0=4"),
        (">1#1=8 >1#2=4", "<0#1=8 <0#2=4"),
        (">1=4", "<*=8"),
        (">1", "<*"),
        (">1", ""),
        ("", ""),
        (">0", ""),
    ],
)
def test_legal_orders_are_not_accused(ranks: tuple[str, ...]) -> None:
    assert _found(*ranks) == []


@pytest.mark.parametrize(
    ("ranks", "found"),
    [
        ((">1 <1", ">0 <0"), ("head to head", ("r0:0", "r1:0"))),
        (("<1 >1", "<0 >0"), ("head to head", ("r0:0", "r1:0"))),
        ((">1 <1 >1 <1", "<0 >0 >0 <0"), ("head to head", ("r0:2", "r1:2"))),
        ((">1#1 >1#2", "<0#2 <0#1"), ("tags", ("r0:0", "r1:0"))),
        (("<1#2 <1#1", ">0#1 >0#2"), ("tags", ("r1:0", "r0:0"))),
        (("(>1#1 >1#2)", "(<0#2 <0#1)"), ("tags", ("r0:0", "r1:0"))),
        ((">1=8 >1=4", "<0=8 <0=8"), ("room", ("r0:1", "r1:1"))),
        (("<1=8 >1=4", ">0=0 <0=4"), ("room", ("r1:0", "r0:0"))),
        (("(>1=8 <1=8)", "(>0=4 <0=8)"), ("room", ("r1:0", "r0:1"))),
        ((">1 <2", ">2 <0", ">0 <1"), ("ring", ("r0:0", "r1:0", "r2:0"))),
    ],
)
def test_wrong_orders_are_named(ranks: tuple[str, ...], found: tuple[str, tuple[str, ...]]) -> None:
    assert _found(*ranks) == [found]


def test_lines_of_a_loop_are_distinguished() -> None:
    ranks = histories((">1 <2 >1 <2", ">2 <0 >2 <0", ">0 <1 >0 <1"), {})
    for history in ranks.values():
        history.steps[:] = [
            step._replace(issue=step.issue._replace(site="same")) for step in history.steps
        ]
    assert [found.row for found in mismatches(ranks)] == ["ring"]


def test_two_threads_have_no_order() -> None:
    assert _found(">1 <1@2", ">0 <0") == []


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
                ranks[source].append(f">{target}#{tag}")
                ranks[target].append(f"<{source}#{tag}")
        assert _found(*map(" ".join, ranks)) == [], seed


# ------------------------------------------------------------------ the first batch of a group


def _begun_by_some(*ranks: str) -> list[str]:
    """``pipe:b world:c``: the first operation of a rank on each group, a batch or a collective."""
    everyone = range(len(ranks))
    members = dict.fromkeys(("pipe", "world", "a", "b"), everyone)
    programs = [re.sub(r"(\w+):b", r"(\1:>1)", text).replace(":c", "") for text in ranks]
    findings = partial_batches(histories(programs, members))
    return [one.lines[0][0].rpartition(" on ")[2] for one in findings]


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
    assert _begun_by_some(*ranks) == []


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
    assert _begun_by_some(*ranks) == groups


def test_a_group_that_may_have_been_used_before_has_no_first_batch() -> None:
    ranks = histories(("(>1)", "(<0)", "world"), {"world": (0, 1, 2)})
    assert len([*partial_batches(ranks)]) == 1
    used = {rank: one._replace(used=frozenset({"world"})) for rank, one in ranks.items()}
    assert [*partial_batches(used)] == []
