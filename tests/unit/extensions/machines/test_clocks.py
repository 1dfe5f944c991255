"""The estimate of how far a machine's clocks are ahead, and by how much it may be wrong."""

from __future__ import annotations

import time
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddp.extensions.machines import clocks as module
from pytest_ddp.extensions.machines.clocks import DRIFT, Clocks, Sample, answer, estimate

MS = 1_000_000
HOUR = 3_600_000 * MS


def sample(asked: int, ahead: int, there: int, back: int, held: int = 0, wall: int = 0) -> Sample:
    """A round trip to a machine whose clock is known, and which took so long on both ways."""
    heard = asked + there + ahead
    return Sample(asked, heard, heard + held, asked + there + held + back, wall)


WAYS = st.integers(0, 500 * MS)


@given(st.integers(-HOUR, HOUR), WAYS, WAYS, WAYS)
def test_the_truth_lies_within_the_uncertainty(
    ahead: int, there: int, back: int, held: int
) -> None:
    """Whatever the ways took: unlike ways bias the middle, by half of their difference."""
    taken = sample(0, ahead, there, back, held)
    assert abs(taken.ahead - ahead) <= taken.uncertainty(taken.returned) + 1
    assert abs(taken.ahead - ahead - (there - back) / 2) <= 1


def test_the_shortest_round_trip_counts() -> None:
    taken = deque([sample(0, HOUR, 1 * MS, 9 * MS), sample(20 * MS, HOUR, 1 * MS, 1 * MS)])
    taken.append(sample(40 * MS, HOUR, 8 * MS, 1 * MS))
    known = estimate(taken, taken[-1].returned)
    assert known.ahead == HOUR
    assert known.uncertainty == pytest.approx(1 * MS, rel=0.01)


def test_a_clock_that_drifts_is_followed() -> None:
    """The clock drifts by 50 us a second for ten minutes; the first round trips are the
    shortest."""
    taken: deque[Sample] = deque(maxlen=module._KEPT)
    for second in range(600):
        at, truth = second * 1000 * MS, second * 50_000
        ways = MS if second > 20 else MS // 10
        taken.append(sample(at, truth, ways, ways))
        known = estimate(taken, taken[-1].returned)
        assert abs(known.ahead - truth) <= known.uncertainty
    assert known.uncertainty < 2 * MS


def test_a_wall_clock_that_is_set_is_followed_at_once() -> None:
    taken = deque([sample(0, 0, MS, MS, wall=0), sample(MS, 0, 9 * MS, 9 * MS, wall=-HOUR)])
    known = estimate(taken, taken[-1].returned)
    assert known.wall_ahead == -HOUR
    assert known.ahead == 0


def test_an_older_sample_counts_for_less() -> None:
    taken = deque([sample(0, 0, MS, MS), sample(60_000 * MS, 0, 2 * MS, 2 * MS)])
    known = estimate(taken, taken[-1].returned)
    assert known.uncertainty == pytest.approx(2 * MS, rel=0.01)
    assert DRIFT * 60_000 * MS > 1 * MS


def ask(clocks: Clocks) -> bytes:
    question = clocks.question()
    assert question
    return question


def came() -> float:
    return time.monotonic()


def test_eight_questions_come_at_once_and_then_one_a_second() -> None:
    clocks = Clocks()
    for _ in range(module._FIRST):
        question = ask(clocks)
        assert clocks.question() == b"", "it is not asked twice at a time"
        clocks.take(answer(question, came()), came())
        assert clocks.known is not None
        assert abs(clocks.known.ahead) <= clocks.known.uncertainty
        assert abs(clocks.known.wall_ahead) <= clocks.known.uncertainty + MS
    assert clocks.question() == b""


def test_what_answers_no_question_is_void() -> None:
    clocks = Clocks()
    question = ask(clocks)
    for reply in (b"", b"x", question, answer(module._QUESTION.pack(7), came())):
        clocks.take(reply, came())
    assert clocks.known is None
    clocks.take(answer(question, came()), came())
    assert clocks.known is not None


def test_a_sign_of_life_without_a_question_has_no_answer() -> None:
    assert answer(b"", came()) == b""
