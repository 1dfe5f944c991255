"""Sends held against receives, on made-up counts."""

from __future__ import annotations

import pytest

from pytest_ddp.deadlock.collectives import NOTHING, Balance, balance
from pytest_ddp.outcome.outcome import MessageRoute, UnmatchedMessages
from pytest_ddp.protocol.rank_status import GroupCount, MessageCounts, Traffic
from tests.unit.standings import code_line

PAIR = GroupCount("0", (0, 1), 0)
OPEN = MessageRoute("0", (0, 1), 0, 1, 0)
FROM_ANY = OPEN._replace(sender=-1)


def send(
    peer: int, count: int = 1, wide: int = 0, *, tag: int = 0, group: str = "0"
) -> MessageCounts:
    return MessageCounts(group, (0, 1), True, peer, tag, count, wide, code_line("a.py:1"))


def receive(
    peer: int, count: int = 1, wide: int = 0, *, tag: int = 0, group: str = "0"
) -> MessageCounts:
    return MessageCounts(group, (0, 1), False, peer, tag, count, wide, code_line("a.py:2"))


def settle(
    zero: list[MessageCounts],
    one: list[MessageCounts],
    before: dict[MessageRoute, int] | None = None,
    *,
    keeps: bool = False,
    counts: tuple[GroupCount, ...] = (PAIR,),
    unclear: bool = False,
) -> Balance:
    traffic = {0: Traffic(tuple(zero), False, False), 1: Traffic(tuple(one), False, unclear)}
    return balance({0: (PAIR,), 1: counts}, traffic, before or {}, keeps=keeps)


@pytest.mark.parametrize(
    ("zero", "one"),
    [
        ([], []),
        ([send(1)], [receive(0)]),
        ([send(1, 3)], [receive(0, 2), receive(-1)]),
        ([send(1, tag=2)], [receive(-1, tag=2)]),
        ([send(1), receive(1)], [send(0), receive(0)]),
    ],
)
def test_what_is_even_leaves_nothing(zero: list[MessageCounts], one: list[MessageCounts]) -> None:
    assert settle(zero, one) == NOTHING


@pytest.mark.parametrize(
    ("zero", "one", "way", "count", "site"),
    [
        ([send(1)], [], OPEN, 1, "a.py:1"),
        ([], [receive(0, 2)], OPEN, -2, "a.py:2"),
        ([send(1, 3)], [receive(0)], OPEN, 2, "a.py:1"),
        ([], [receive(-1)], FROM_ANY, -1, "a.py:2"),
        ([send(1)], [receive(-1, 2)], FROM_ANY, -1, "a.py:2"),
        ([send(1, 2)], [receive(-1)], OPEN, 1, "a.py:1"),
    ],
)
def test_what_is_odd_is_reported(
    zero: list[MessageCounts], one: list[MessageCounts], way: MessageRoute, count: int, site: str
) -> None:
    assert settle(zero, one) == Balance((UnmatchedMessages(way, count, code_line(site)),), {})


def test_tags_are_apart() -> None:
    unfinished = settle([send(1, tag=1)], [receive(0, tag=2)]).unfinished
    assert {one.route.tag: one.count for one in unfinished} == {1: 1, 2: -1}


def test_a_receive_from_any_takes_what_no_other_does() -> None:
    traffic = {
        0: Traffic((receive_of_three(-1), receive_of_three(1)), False, False),
        1: Traffic((send_of_three(),), False, False),
        2: Traffic((send_of_three(),), False, False),
    }
    three = GroupCount("0", (0, 1, 2), 0)
    assert balance(dict.fromkeys(traffic, (three,)), traffic, {}, keeps=False) == NOTHING


def send_of_three() -> MessageCounts:
    return MessageCounts("0", (0, 1, 2), True, 0, 0, 1, 0, code_line("a.py:1"))


def receive_of_three(peer: int) -> MessageCounts:
    return MessageCounts("0", (0, 1, 2), False, peer, 0, 1, 0, code_line("a.py:2"))


@pytest.mark.parametrize(
    "counts",
    [
        pytest.param((), id="destroyed on one rank"),
        pytest.param((GroupCount("0", (0, 1), 0, failed=True),), id="failed on one rank"),
    ],
)
def test_of_a_group_that_is_not_whole_nothing_is_reported(counts: tuple[GroupCount, ...]) -> None:
    assert settle([send(1)], [], counts=counts) == NOTHING


def test_where_a_fixtures_thread_sends_nothing_is_reported() -> None:
    assert settle([send(1)], [], unclear=True, keeps=True) == NOTHING


# ------------------------------------------------------------------ wide fixtures


def test_what_a_fixture_begins_is_open_while_it_is_up() -> None:
    assert settle([], [receive(0, 1, 1)], keeps=True) == Balance((), {OPEN: -1})
    assert settle([], [], {OPEN: -1}, keeps=True) == Balance((), {OPEN: -1})
    assert settle([send(1)], [], {OPEN: -1}, keeps=True) == NOTHING
    assert settle([send(1)], [receive(0)], {OPEN: -1}, keeps=True) == Balance((), {OPEN: -1})


def test_what_a_fixture_leaves_is_reported_when_it_is_gone() -> None:
    assert settle([], [], {OPEN: 1}) == Balance((UnmatchedMessages(OPEN, 1, None),), {})


def test_what_a_test_leaves_beside_a_fixtures_is_reported_once() -> None:
    left = settle([send(1, 2, 1)], [], keeps=True)
    assert left == Balance((UnmatchedMessages(OPEN, 1, code_line("a.py:1")),), {OPEN: 1})
    assert settle([], [], left.open, keeps=True) == Balance((), {OPEN: 1})


def test_the_other_direction_is_no_fixtures() -> None:
    left = settle([], [receive(0, 3)], {OPEN: 1}, keeps=True)
    assert left == Balance((UnmatchedMessages(OPEN, -2, code_line("a.py:2")),), {})


def test_a_receive_from_any_of_a_fixture_takes_a_tests_send() -> None:
    up = settle([], [receive(-1, 1, 1)], keeps=True)
    assert up == Balance((), {FROM_ANY: -1})
    assert settle([send(1)], [], up.open, keeps=True) == NOTHING
