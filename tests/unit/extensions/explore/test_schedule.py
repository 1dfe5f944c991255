"""How schedules are written and read."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_ddp.extensions.explore.run_events import RankThread
from pytest_ddp.extensions.explore.schedule import (
    Hold,
    Schedule,
    parse_schedule,
    schedule_text,
)

_POINTS = st.one_of(
    st.text(st.characters(), min_size=1),  # lone surrogates, as in names of files, included
    st.text("#+@%'\" 1.2BF:\n", min_size=1),
)
_HOLDS = st.builds(
    Hold,
    st.builds(RankThread, st.integers(0, 99), st.integers(0, 9)),
    _POINTS,
    st.integers(1, 999),
)


@settings(deadline=None)
@given(st.lists(_HOLDS, min_size=1, max_size=3, unique=True))
@example([Hold(RankThread(0), "#1+2@x#3"), Hold(RankThread(1), "%2B"), Hold(RankThread(1), " ")])
@example([Hold(RankThread(0), "a\udc80b")])
def test_what_is_written_is_read_again(holds: list[Hold]) -> None:
    text = schedule_text(tuple(holds))
    assert parse_schedule(text) == tuple(holds)
    assert text.isprintable()
    assert not set(text) & set("'\"")


@pytest.mark.parametrize(
    ("schedule", "text"),
    [
        ((Hold(RankThread(1), "open:best.ckpt"),), "1@open:best.ckpt#1"),
        (
            (Hold(RankThread(0), "all_reduce", 12), Hold(RankThread(1, 2), "begin")),
            "0@all_reduce#12+1.2@begin#1",
        ),
        ((Hold(RankThread(1), "open:a b/é#1"),), "1@open:a b/é#1#1"),
        ((Hold(RankThread(1), "open:it's 5+5"),), "1@open:it%27s 5%2B5#1"),
    ],
)
def test_a_schedule_reads_well(schedule: Schedule, text: str) -> None:
    assert schedule_text(schedule) == text
    assert parse_schedule(text) == schedule


def test_a_schedule_written_by_hand_may_have_spaces_between_holds() -> None:
    assert parse_schedule(" 1.0@begin#1 +  0@begin#01 ") == (
        Hold(RankThread(1), "begin"),
        Hold(RankThread(0), "begin"),
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "names no hold"),
        ("1@begin#1+", "'+' too many"),
        ("begin", "has 'begin', which is no hold"),
        ("1@begin", "which is no hold"),
        ("1@#1", "which is no hold"),
        ("x@begin#1", "which is no hold"),
        ("-1@begin#1", "which is no hold"),
        ("1.@begin#1", "which is no hold"),
        ("²@begin#1", "which is no hold"),
        ("1@begin#0", "for the first time at '#1'"),
        ("1@open:%FF#1", "an escape such as '%2B' is wrong"),
        ("1@begin#1+1.0@begin#1", "has the hold '1@begin#1' twice"),
    ],
)
def test_what_is_no_schedule_is_an_error(text: str, why: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_schedule(text)
    assert why in str(caught.value)
