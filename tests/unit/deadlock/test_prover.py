"""The proof that ranks wait for ever, from hand-made answers of ranks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_ddp.deadlock.prover import ProbedRank, prove
from pytest_ddp.outcome.outcome import RankLine
from pytest_ddp.protocol.rank_status import BegunMessages
from tests.unit.standings import (
    WORLD,
    accused,
    code_line,
    collective,
    count,
    ended,
    pair,
    proof,
    receive,
    ring,
    running,
    send,
    standing,
    stuck,
)

# ------------------------------------------------------------------ members that have ended


def test_member_that_ended_without_it() -> None:
    hang = proof({0: stuck(pair(3)), 1: ended(count(2, 0, 1))})
    assert hang.sentence == (
        "deadlock: rank 0 waits in all_reduce #3 of the default group, "
        "rank 1 has ended the test without it"
    )
    assert hang.culprits == (1,)


@pytest.mark.parametrize("issued", [3, 4])
def test_member_that_ended_after_its_part(issued: int) -> None:
    assert prove({0: stuck(pair(3)), 1: ended(count(issued, 0, 1))}) is None


def test_number_counts_on_the_waiting_group_alone() -> None:
    of_three = collective(2, 0, 1, group="3")
    assert accused({0: stuck(of_three), 1: ended(count(7, 0, 1), count(1, 0, 1, group="3"))}) == {0}
    assert prove({0: stuck(of_three), 1: ended(count(0, 0, 1), count(2, 0, 1, group="3"))}) is None


def test_rank_that_gave_up_the_group_is_no_proof() -> None:
    # A sender of a gather may destroy the group while the receiver waits for another.
    gather = collective(1, 0, 1, 2, operation="gather")
    assert prove({0: stuck(gather), 1: ended(), 2: running(count(0, 0, 1, 2))}) is None


def test_ended_rank_is_never_accused() -> None:
    now = standing(pair(2))
    late = ProbedRank(now, replace(now, number=1), ended=True)
    assert prove({0: ended(count(1, 0, 1)), 1: late}) is None
    assert proof({0: stuck(pair(3)), 1: late}).table[1].state == "ended"


def test_dead_rank_is_not_in_the_stands() -> None:
    assert prove({0: stuck(collective(1, 0, 1, 2)), 2: running(count(0, 0, 1, 2))}) is None


def test_member_of_no_group_is_not_needed() -> None:
    assert prove({0: stuck(pair(1)), 1: running(count(1, 0, 1)), 2: ended()}) is None


def test_wait_for_oneself_is_no_need() -> None:
    alone = stuck(collective(1, 0), counts=(count(0, 0),))
    assert prove({0: alone, 1: ended(count(0, 0, 1))}) is None


# ------------------------------------------------------------------ ranks that are not stuck


NEEDS_ENDED = {1: ended(count(0, 0, 1))}


def test_wait_that_needs_an_ended_rank_is_hopeless() -> None:
    assert accused({0: stuck(pair(1)), **NEEDS_ENDED}) == {0}


def test_single_answer_is_no_proof() -> None:
    assert prove({0: ProbedRank(standing(pair(1)), None, ended=False), **NEEDS_ENDED}) is None


def test_rank_that_moved_between_the_probes_is_not_stuck() -> None:
    now = standing(pair(1), pulse="12 wait:4 [1]")
    moved = ProbedRank(now, replace(now, pulse="11 wait:4 [1]"), ended=False)
    assert prove({0: moved, **NEEDS_ENDED}) is None


def test_rank_that_computes_is_not_stuck() -> None:
    now = standing(pair(1), blocked=False)
    assert prove({0: ProbedRank(now, now, ended=False), **NEEDS_ENDED}) is None


def test_rank_that_waits_for_nothing_known_is_not_stuck() -> None:
    assert prove({0: stuck(blocked=True), **NEEDS_ENDED}) is None


def test_slow_member_is_awaited() -> None:
    assert prove({0: stuck(pair(1)), 1: running(count(0, 0, 1))}) is None


def test_asynchronous_collective_that_nobody_waits_for() -> None:
    begun = running(count(1, 0, 1), begun=(pair(1),))
    assert prove({0: begun, **NEEDS_ENDED}) is None


# ------------------------------------------------------------------ sets of ranks


AHEAD = collective(1, 0, 1, group="3")
BEHIND = collective(1, 0, 1, group="4", nth=2)
CROSSED = {
    0: stuck(AHEAD, counts=(count(1, 0, 1, group="3"), count(0, 0, 1, group="4"))),
    1: stuck(BEHIND, counts=(count(0, 0, 1, group="3"), count(1, 0, 1, group="4"))),
}
"""Each waits on the group that the other comes to later."""


def test_two_groups_in_crossed_order() -> None:
    hang = proof(CROSSED)
    assert hang.sentence == (
        "deadlock: rank 0 waits in all_reduce #1 of the group of ranks 0, 1, "
        "rank 1 in all_reduce #1 of group 2 of ranks 0, 1"
    )
    assert hang.culprits == ()
    assert accused(CROSSED) == {0, 1}


def test_other_thread_of_a_member_may_still_come() -> None:
    now = replace(CROSSED[1].now, alone=False)
    assert prove({0: CROSSED[0], 1: ProbedRank(now, now, ended=False)}) is None


def test_own_threads_do_not_end_a_wait_for_an_ended_rank() -> None:
    assert accused({0: stuck(pair(1), alone=False), **NEEDS_ENDED}) == {0}


@pytest.mark.parametrize("size", [2, 3, 4])
def test_cycle_of_receives(size: int) -> None:
    assert accused(ring(size)) == set(range(size))
    assert proof(ring(size)).sentence == (
        f"deadlock: rank 0 waits in recv #1 from rank 1 (tag 0), "
        f"rank 1 in recv #1 from rank {2 % size} (tag 0)"
    )


@pytest.mark.parametrize("size", [3, 4])
@pytest.mark.parametrize("free", range(3))
def test_one_free_rank_frees_the_cycle(size: int, free: int) -> None:
    assert prove({**ring(size), free: running()}) is None


@pytest.mark.parametrize("size", [3, 4])
@pytest.mark.parametrize("last", ["ended", "running"])
def test_chain_stands_and_falls_with_its_last_rank(size: int, last: str) -> None:
    chain = ring(size)
    chain[size - 1] = ended() if last == "ended" else running()
    hopeless = set(range(size - 1)) if last == "ended" else set()
    assert accused(chain) == hopeless


def test_chain_that_leads_into_a_cycle() -> None:
    tail = stuck(receive(1, 2, 0, 1, 2, 3), counts=())
    stands = {**ring(2, start=2), 1: tail, 0: stuck(receive(1, 1, 0, 1, 2, 3), counts=())}
    assert accused(stands) == {0, 1, 2, 3}


def test_independent_pairs_are_judged_apart() -> None:
    hang = proof({**ring(2), 2: stuck(receive(1, 3, 2, 3), counts=()), 3: running()})
    assert "rank 2" not in hang.sentence
    assert hang.culprits == ()


def test_one_hopeless_need_of_several_is_enough() -> None:
    three = collective(1, 0, 1, 2)
    stands = {0: stuck(three), 1: running(count(0, 0, 1, 2)), 2: ended(count(0, 0, 1, 2))}
    hang = proof(stands)
    assert hang.culprits == (2,)
    assert hang.sentence.endswith("rank 2 has ended the test without it")


def test_ended_rank_is_reported_before_a_cycle() -> None:
    stands = {**ring(2), 2: stuck(receive(1, 3, 2, 3), counts=()), 3: ended()}
    assert proof(stands).sentence.startswith("deadlock: rank 2 waits in recv #1 from rank 3")


def test_any_of_several_waits_may_be_the_hopeless_one() -> None:
    stands = {0: stuck(AHEAD, BEHIND), 1: ended(count(1, 0, 1, group="3"), count(0, group="4"))}
    assert accused(stands) == {0}


# ------------------------------------------------------------------ sends and receives


def begun(count: int, peer: int = 0, tag: int = 0, group: str = WORLD) -> tuple[BegunMessages, ...]:
    return (BegunMessages(group, peer, tag, count),)


def test_receive_that_nobody_sends() -> None:
    hang = proof({0: stuck(receive(2, 1, 0, 1)), 1: ended(begun_sends=begun(1))})
    assert hang.sentence == (
        "deadlock: rank 0 waits in recv #2 from rank 1 (tag 0), "
        "rank 1 has ended the test and cannot send it"
    )


def test_send_that_nobody_receives() -> None:
    hang = proof({0: stuck(send(2, 1, 0, 1)), 1: ended(begun_receives=begun(1))})
    assert hang.sentence == (
        "deadlock: rank 0 waits in send #2 to rank 1 (tag 0), "
        "rank 1 has ended the test and cannot receive it"
    )


def test_message_under_way() -> None:
    assert prove({0: stuck(receive(2, 1, 0, 1)), 1: ended(begun_sends=begun(2))}) is None
    assert prove({0: stuck(send(2, 1, 0, 1)), 1: ended(begun_receives=begun(2))}) is None


@pytest.mark.parametrize("elsewhere", [begun(1, 2), begun(1, tag=5), begun(1, group="3")], ids=str)
def test_message_to_somewhere_else(elsewhere: tuple[BegunMessages, ...]) -> None:
    assert accused({0: stuck(receive(1, 1, 0, 1)), 1: ended(begun_sends=elsewhere)}) == {0}
    assert accused({0: stuck(send(1, 1, 0, 1)), 1: ended(begun_receives=elsewhere)}) == {0}


def test_a_receive_from_any_rank_may_take_a_message() -> None:
    anybody = (*begun(1), *begun(1, peer=-1))
    assert prove({0: stuck(send(2, 1, 0, 1)), 1: ended(begun_receives=anybody)}) is None
    assert accused({0: stuck(send(3, 1, 0, 1)), 1: ended(begun_receives=anybody)}) == {0}


def test_ranks_that_send_to_each_other() -> None:
    hang = proof({0: stuck(send(1, 1, 0, 1)), 1: stuck(send(1, 0, 0, 1))})
    assert hang.sentence == (
        "deadlock: rank 0 waits in send #1 to rank 1 (tag 0), rank 1 in send #1 to rank 0 (tag 0)"
    )
    assert hang.root_cause.unknown.startswith("a message has two ranks")


def test_a_thread_of_the_receiver_may_receive() -> None:
    assert prove({0: stuck(send(1, 1, 0, 1)), 1: stuck(send(1, 0, 0, 1), alone=False)}) is None


def test_receive_needs_its_sender_alone() -> None:
    stands = {0: stuck(receive(1, 1, 0, 1, 2)), 1: running(), 2: ended(count(0, 0, 1, 2))}
    assert prove(stands) is None


def test_receive_contradicts_no_collective_of_the_same_number() -> None:
    # The sender's other thread may send while its main thread waits in all_reduce #1.
    stands = {
        0: stuck(receive(1, 1, 0, 1), counts=(count(0, 0, 1),)),
        1: stuck(pair(1), alone=False),
    }
    assert prove(stands) is None
    hang = proof({**stands, 1: stuck(pair(1))})
    assert hang.sentence == (
        "deadlock: rank 0 waits in recv #1 from rank 1 (tag 0), "
        "rank 1 in all_reduce #1 of the default group"
    )


# ------------------------------------------------------------------ the table


def test_table_has_every_rank_in_order() -> None:
    place = code_line(f"{Path.cwd()}/tests/test_made.py:7 in test_made")
    here = replace(pair(3), site=code_line(f"{Path.cwd()}/tests/test_made.py:13"), numel=None)
    table = proof(
        {
            2: running(place=place, phase=("setup",)),
            1: ended(count(2, 0, 1)),
            0: stuck(here),
        }
    ).table
    assert table == (
        RankLine(
            *(
                0,
                "waits",
                ("call",),
                "all_reduce #3 of the default group",
                code_line("tests/test_made.py:13"),
            ),
            *("0", 3, "all_reduce"),
        ),
        RankLine(1, "ended", (), "", None),
        RankLine(2, "runs", ("setup",), "", code_line("tests/test_made.py:7 in test_made")),
    )


def test_wait_without_a_known_line_shows_the_innermost_one() -> None:
    unknown = replace(pair(3), site=None)
    line = proof({0: stuck(unknown), 1: ended(count(2, 0, 1))}).table[0]
    assert line.place == code_line("/src/test_made.py:7 in test_made")
    assert line.collective == "all_reduce #3 (4 x float32) of the default group"


def test_rank_that_is_not_blocked_runs_though_something_is_open() -> None:
    now = standing(pair(1), blocked=False)
    awake = ProbedRank(now, now, ended=False)
    line = proof({0: stuck(pair(3)), 1: ended(count(2, 0, 1)), 2: awake}).table[2]
    assert (line.state, line.collective) == ("runs", "")
