"""Who is to blame when a test's time is over, from hand-made looks at its ranks."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_ddp.deadlock.prover import TimeoutSnapshot, diagnose_timeout
from pytest_ddp.protocol.rank_status import NewGroup
from tests.unit import handmade as made
from tests.unit.handmade import stopped, text
from tests.unit.standings import collective, receive, standing

WAITS = standing(collective(1, 0, 1, 2))
RUNS = standing()
SENDS = standing(engaged="send")


def look(rank: int, *answers: Any, **known: Any) -> TimeoutSnapshot:
    """A rank that gave these two answers, or the same one twice."""
    before, now = (answers * 2)[:2] if answers else (None, None)
    last = known.pop("last", now or before)
    fields: dict[str, Any] = {"ended": False, "suspended": False, "busy": False}
    return TimeoutSnapshot(rank, before=before, now=now, last=last, **(fields | known))


@pytest.mark.parametrize(
    ("other", "state"),
    [
        (look(1, RUNS), "runs"),
        (look(1, RUNS, WAITS), "runs"),
        (look(1, WAITS, RUNS), "runs"),
        (look(1), "silent"),
        (look(1, WAITS, None), "silent"),
        (look(1, WAITS, suspended=True), "suspended"),
    ],
)
def test_rank_that_does_not_wait_is_the_cause(other: TimeoutSnapshot, state: str) -> None:
    expiry = diagnose_timeout([look(0, WAITS), other, look(2, SENDS), look(3, ended=True)])
    assert expiry.culprits == (1,)
    assert [line.state for line in expiry.table] == ["waits", state, "waits", "ended"]
    assert expiry.table[2].collective == "send"


def test_groups_that_ranks_have_made_are_shown_beside_one_that_is_being_made() -> None:
    """Groups of ranks that have ended are shown, too; none is shown in a timeout of another
    kind."""
    first = standing(new_groups=(NewGroup(1, (0, 1)), NewGroup(3, (0, 2, 3))))
    makes = standing(engaged="new_group #1 (ranks 1, 2)", engaged_name="new_group")
    expiry = diagnose_timeout([look(0, first, ended=True), look(1, makes), look(2, RUNS)])
    assert expiry.remarks == {0: "has made new_group #1 (ranks 0-1), #3 (ranks 0, 2-3)"}
    assert diagnose_timeout([look(0, first, ended=True), look(1, SENDS)]).remarks == {}
    many = standing(new_groups=tuple(NewGroup(n, (0,)) for n in range(1, 20)))
    words = diagnose_timeout([look(0, many), look(1, makes)]).remarks[0]
    assert words.startswith("has made new_group ..., #12 (rank 0), ")
    assert words.endswith("#19 (rank 0)")


def test_wait_that_has_gone_on_to_the_next_one_is_a_wait() -> None:
    late = standing(collective(2, 0, 1, 2), pulse="later")
    assert diagnose_timeout([look(0, WAITS, late), look(1, RUNS)]).culprits == (1,)


def test_ended_rank_is_the_cause_where_all_others_wait() -> None:
    looks = [look(0, SENDS), look(1, ended=True), look(2, SENDS)]
    assert diagnose_timeout(looks).culprits == (1,)


def test_waiting_rank_is_the_cause_where_most_have_ended() -> None:
    looks = [look(0, ended=True), look(1, ended=True), look(2, SENDS)]
    assert diagnose_timeout(looks).culprits == (2,)


@pytest.mark.parametrize(
    "looks",
    [
        [look(0, WAITS), look(1, standing(receive(1, 0, 0, 1)))],
        [look(0, SENDS), look(1, ended=True)],
        [look(rank, WAITS) for rank in range(3)],
        [look(rank, WAITS, ended=rank < 2) for rank in range(4)],
    ],
    ids=["two wait", "one of two has ended", "all wait", "half have ended"],
)
def test_none_is_the_cause_where_no_majority_did_the_same(looks: list[TimeoutSnapshot]) -> None:
    expiry = diagnose_timeout(looks)
    assert expiry.culprits == ()
    assert expiry.unknown


def test_last_answer_of_a_rank_that_is_silent_has_its_place() -> None:
    (line,) = diagnose_timeout([look(1, last=WAITS)]).table
    assert (line.state, line.phase, line.collective) == ("silent", ("call",), "")
    assert str(line.place).endswith("test_made.py:7 in test_made")


def test_text_has_the_culprit_first_and_a_table() -> None:
    expiry = diagnose_timeout([look(0, WAITS), look(1, busy=True, last=RUNS), look(2, WAITS)])
    spinning = stopped(1, made.SPINNING)
    shown = text(stopped(0), spinning, stopped(2), timeout=5.0, expiry=expiry)
    assert shown.startswith(
        "timed out after 5 s: rank 1 does not answer in call, ranks 0, 2 wait\n\n"
        "rank 0  waits   call"
    )
    assert "rank 1: does not answer: it computes in code that holds the GIL\n" in shown
    assert shown.index("rank 1 in call, most recent") < shown.index("ranks 0, 2 in call, most")


@pytest.mark.parametrize(
    ("busy", "words"),
    [
        (True, "it computes in code that holds the GIL"),
        (False, "it sleeps, as in code that holds the GIL"),
        (None, "as in code that holds the GIL"),
    ],
)
def test_of_a_silent_rank_only_what_was_seen_is_reported(busy: bool | None, words: str) -> None:
    remark = diagnose_timeout([look(0, WAITS), look(1, busy=busy)]).remarks[1]
    assert remark.removeprefix("does not answer").lstrip(":, ") == words
