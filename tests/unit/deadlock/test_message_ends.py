"""Both ends of messages that are made up: which sends meet which receives, and in what dtype."""

from __future__ import annotations

import pytest

from pytest_ddp.deadlock.message_ends import difference
from pytest_ddp.outcome.outcome import MessageRoute
from pytest_ddp.protocol.rank_status import Dropped, GroupCount, MessageShape, Traffic
from tests.unit.standings import code_line

ALL = (0, 1, 2)


def begun(text: str, *, thread: int = 1) -> Traffic:
    """``s1:f4 r2#7:i0 r*:i4``: sends and receives, their peer, tag, dtype and elements."""
    shapes = []
    for place, word in enumerate(text.split(), 1):
        ends, _, what = word.partition(":")
        peer, _, tag = ends[1:].partition("#")
        shapes.append(
            MessageShape(
                *("0", ends[0] == "s", -1 if peer == "*" else int(peer), int(tag or 0)),
                *(
                    int(what[1:]),
                    {"f": "float32", "i": "int32"}[what[0]],
                    code_line(f"a.py:{place}"),
                    thread,
                ),
            )
        )
    return Traffic((), lost=False, unclear=False, shapes=(*shapes,), order=(*range(len(shapes)),))


def shown(*ranks: str | Traffic, before: dict[MessageRoute, int] | None = None) -> str:
    counts = dict.fromkeys(ALL, (GroupCount("0", ALL, 0),))
    traffic = {
        rank: begun(each) if isinstance(each, str) else each for rank, each in enumerate(ranks)
    }
    return difference(counts, traffic, before or {}).partition(":")[0]


@pytest.mark.parametrize(
    ("ranks", "where"),
    [
        (("s1:f4", "r0:i4"), "message #1 from rank 0 to rank 1"),
        (("s1:f4 s1:f4", "r0:f4 r0:i4"), "message #2 from rank 0 to rank 1"),
        (("s1:f4 s1:i4", "r0:i4 r0:f4"), "message #1 from rank 0 to rank 1"),
        (("s1#3:f4", "r0#3:i4"), "message #1 from rank 0 to rank 1 (tag 3)"),
        (("r2:f4 s1:f4", "r0:f4 s2:f4", "r1:f4 s0:i4"), "message #1 from rank 2 to rank 0"),
        (("s1:f4 s1:f4 s1:f4", "r0:f4 r0:i4"), "message #2 from rank 0 to rank 1"),
        (("s1:f4", "r*:i4"), "a message to rank 1"),
        (("s1:f4", "r*:f4 r2:i4", "s1:f4"), "a message to rank 1"),
    ],
)
def test_other_dtypes_are_found(ranks: tuple[str, ...], where: str) -> None:
    assert shown(*ranks) == f"the ranks differ in {where} of the default group"


@pytest.mark.parametrize(
    "ranks",
    [
        ("s1:f4 s1:i4", "r0:f4 r0:i4"),
        ("s1:f4", "r0:f6"),
        ("s1#1:f4 s1#2:i4", "r0#2:i4 r0#1:f4"),
        ("s1:f4 r1:i4", "r0:f4 s0:i4"),
        ("s1:f0", "r0:i4"),
        ("s1:f4", "r*:f4 r*:i4", "s1:i4"),  # either may come first
        ("s1:f0", "r*:i4"),
        ("s1:f4 s1:f4", "r*:i4"),  # one that is not received may be the other one's
        ("s1:f4", "", "r0:i4"),
    ],
)
def test_equal_dtypes_are_not_accused(ranks: tuple[str, ...]) -> None:
    assert shown(*ranks) == ""


def test_messages_of_several_threads_have_no_order() -> None:
    first, second = begun("s1:f4", thread=1), begun("s1:i4", thread=2)
    sent = Traffic((), False, False, (), first.shapes + second.shapes, (0, 1))
    assert shown(sent, "r0:i4 r0:f4") == ""
    assert " in a message to rank 1 of " in shown(sent, "r0:f4 r0:f4")


def test_a_loop_is_one_shape() -> None:
    sent = begun("s1:f4 s1:i4")
    both = Traffic((), False, False, (), sent.shapes, (0, 0, 0, 1))
    assert " in message #4 from " in shown(both, "r0:f4 r0:f4 r0:f4 r0:f4")


@pytest.mark.parametrize(
    ("receiver", "before"),
    [
        (Traffic((), False, unclear=True), {}),
        (Traffic((), True, False, (Dropped(False, 0, code_line("a.py:1")),)), {}),
        (Traffic((), False, False), {MessageRoute("0", ALL, 0, 1, 0): 1}),
    ],
    ids=["of a fixture's thread", "given up", "open before"],
)
def test_messages_of_an_unknown_order_are_not_compared(
    receiver: Traffic, before: dict[MessageRoute, int]
) -> None:
    there = begun("r0:i4")
    receiver = Traffic(
        (), receiver.lost, receiver.unclear, receiver.dropped, there.shapes, there.order
    )
    assert shown("s1:f4", receiver, before=before) == ""


def test_messages_of_a_group_that_is_not_whole_are_not_compared() -> None:
    traffic = {0: begun("s1:f4"), 1: begun("r0:i4")}
    assert difference({0: (GroupCount("0", ALL, 0),), 1: (), 2: ()}, traffic, {}) == ""
