"""The proof where ranks wait in operations of the ``ddp`` fixture, from hand-made answers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_ddp.deadlock.prover import ProbedRank, prove
from pytest_ddp.outcome.outcome import RankLine
from pytest_ddp.protocol.rank_status import SIDE_CHANNEL, PendingOperation
from tests.unit.standings import (
    code_line,
    collective,
    count,
    ended,
    exchange,
    receive,
    running,
    stuck,
)

GATHER = exchange(1, 0, 1)
BARRIER = collective(2, 0, 1, operation="barrier")
IN_GATHER = stuck(GATHER, counts=(count(1, 0, 1),))
IN_BARRIER = stuck(BARRIER)


def test_exchange_against_collective() -> None:
    hang = prove({0: IN_GATHER, 1: IN_BARRIER})
    assert hang is not None
    assert hang.sentence == (
        "deadlock: rank 0 waits in ddp.gather #1, rank 1 in barrier #2 of the default group"
    )
    assert hang.culprits == ()
    place = code_line("/src/test_made.py:7 in test_made")
    assert hang.table[0] == RankLine(
        *(0, "waits", ("call",), "ddp.gather #1", place, SIDE_CHANNEL),
        number=1,
        operation="ddp.gather",
    )


def test_collective_against_exchange() -> None:
    hang = prove({0: IN_BARRIER, 1: IN_GATHER})
    assert hang is not None
    assert hang.sentence == (
        "deadlock: rank 0 waits in barrier #2 of the default group, rank 1 in ddp.gather #1"
    )


@pytest.mark.parametrize("operation", ["barrier", "gather", "broadcast"])
def test_exchange_against_receive(operation: str) -> None:
    waits = exchange(3, 0, 1, operation=operation)
    hang = prove({0: stuck(waits), 1: stuck(receive(1, 0, 0, 1), exchanges=2)})
    assert hang is not None
    assert hang.sentence == (
        f"deadlock: rank 0 waits in ddp.{operation} #3, rank 1 in recv #1 from rank 0 (tag 0)"
    )


def test_rank_that_came_to_the_exchange_is_not_needed() -> None:
    # Its answer is under way: the other one has been given it already.
    beyond = replace(IN_BARRIER.now, exchanges=1)
    assert prove({0: IN_GATHER, 1: ProbedRank(beyond, beyond, ended=False)}) is None


@pytest.mark.parametrize("exchanges", [0, 1])
def test_slow_rank_is_awaited(exchanges: int) -> None:
    assert prove({0: IN_GATHER, 1: running(count(1, 0, 1), exchanges=exchanges)}) is None


def test_all_ranks_of_the_test_are_needed() -> None:
    gather, barrier = exchange(1, 0, 1, 2), collective(1, 0, 1, 2, operation="barrier")
    there = {0: stuck(gather, counts=(count(0, 0, 1, 2),)), 1: stuck(barrier)}
    assert prove({**there, 2: running(count(0, 0, 1, 2))}) is not None
    came = running(count(1, 0, 1, 2), exchanges=1)
    assert prove({0: there[0], 1: came, 2: came}) is None
    assert prove({0: there[0], 1: came, 2: there[1]}) is not None


def test_members_of_a_subgroup_wait_for_a_rank_outside_that_waits_for_them() -> None:
    pair: PendingOperation = collective(1, 0, 1, group="3")
    gather = exchange(1, 0, 1, 2)
    outside = stuck(receive(1, 0, 0, 1, 2))
    inside = stuck(gather, counts=(count(0, 0, 1, group="3"),))
    assert prove({0: stuck(pair), 1: inside, 2: outside}) is not None
    assert prove({0: running(count(0, 0, 1, group="3")), 1: inside, 2: outside}) is None


def test_other_thread_of_a_member_may_still_come() -> None:
    for rank, stand in ((0, IN_GATHER), (1, IN_BARRIER)):
        now = replace(stand.now, alone=False)
        stands = {0: IN_GATHER, 1: IN_BARRIER, rank: ProbedRank(now, now, ended=False)}
        assert prove(stands) is None


def test_exchange_with_an_ended_rank_is_answered_by_the_controller() -> None:
    gather, three = exchange(1, 0, 1, 2), (0, 1, 2)
    waits = {0: stuck(gather), 2: stuck(receive(1, 0, *three))}
    assert prove({**waits, 1: ended(count(0, *three))}) is None
    assert prove({**waits, 1: stuck(receive(1, 2, *three))}) is not None


def test_exchange_with_a_dead_rank_is_answered_by_the_controller() -> None:
    three = (0, 1, 2)
    assert prove({0: stuck(exchange(1, *three)), 2: stuck(receive(1, 0, *three))}) is None
