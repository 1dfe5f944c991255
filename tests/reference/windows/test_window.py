"""Date windows and the rules that pick the next one."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone

import pytest
from ddp_reference.windows.window import (
    DateWindow,
    first_window,
    parse_date,
    random_window,
    slide_window,
)
from hypothesis import given
from hypothesis import strategies as st

START = datetime(2024, 1, 1)
spans = st.integers(1, 60).map(lambda days: DateWindow(START, START + timedelta(days=days)))


@pytest.mark.parametrize("value", ["2024-01-31", date(2024, 1, 31), datetime(2024, 1, 31)])
def test_a_day_is_its_midnight(value: date | str) -> None:
    assert parse_date(value) == datetime(2024, 1, 31)


def test_text_that_is_no_date_is_named() -> None:
    with pytest.raises(ValueError, match=r"'31\.1\.2024' is no date; write it as 2024-01-31"):
        parse_date("31.1.2024")


def test_a_time_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="UTC without one"):
        parse_date(datetime(2024, 1, 31, tzinfo=timezone.utc))  # noqa: UP017


@given(span=spans, seed=st.integers(0, 2**40), draw=st.integers(0, 10**6), data=st.data())
def test_random_windows_lie_inside_on_whole_days(
    span: DateWindow, seed: int, draw: int, data: st.DataObject
) -> None:
    days = data.draw(st.integers(1, span.length.days))
    window = random_window(span, days, seed=seed, draw=draw)
    assert span.covers(window)
    assert window.length == timedelta(days=days)
    assert (window.start - span.start) % timedelta(days=1) == timedelta()


def test_random_windows_reach_both_ends_and_depend_on_the_seed() -> None:
    span = DateWindow(START, START + timedelta(days=5))
    starts, others = (
        [random_window(span, 3, seed=seed, draw=k).start.day for k in range(50)] for seed in (0, 1)
    )
    assert set(starts) == {1, 2, 3}
    assert starts != others


def test_sliding_windows_start_over_at_the_end() -> None:
    span = DateWindow(START, START + timedelta(days=7))
    window, starts = first_window(span, 3), []
    for _ in range(5):
        starts.append(window.start.day)
        window = slide_window(span, window, 3, stride_days=2)
    assert starts == [1, 3, 5, 1, 3]


@given(span=spans, stride=st.integers(1, 90), moved=st.integers(-90, 90), data=st.data())
def test_sliding_never_leaves_the_dates(
    span: DateWindow, stride: int, moved: int, data: st.DataObject
) -> None:
    days = data.draw(st.integers(1, span.length.days))
    current = first_window(DateWindow(START + timedelta(days=moved), span.end), days)
    assert span.covers(slide_window(span, current, days, stride_days=stride))
