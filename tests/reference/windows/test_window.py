"""Date windows and the rules that pick the next one."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone

import numpy as np
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


@pytest.mark.parametrize("end", ["2024-01-01", "2023-12-31"])
def test_dates_out_of_order_are_refused_by_name(end: str) -> None:
    with pytest.raises(ValueError, match="training dates are out of order"):
        DateWindow.of("2024-01-01", end, "training")


def test_the_end_is_outside() -> None:
    window = DateWindow.of("2024-01-01", "2024-01-03")
    assert window.contains(datetime(2024, 1, 2, 23, 59))
    assert not window.contains(datetime(2024, 1, 3))
    assert not window.overlaps(DateWindow.of("2024-01-03", "2024-01-04"))
    assert window.overlaps(DateWindow.of("2024-01-02", "2024-01-04"))
    assert window.id == "2024-01-01T00:00/2024-01-03T00:00"


@given(span=spans, seed=st.integers(0, 2**40), draw=st.integers(0, 10**6), data=st.data())
def test_random_windows_lie_inside_on_whole_days(
    span: DateWindow, seed: int, draw: int, data: st.DataObject
) -> None:
    days = data.draw(st.integers(1, span.length.days))
    window = random_window(span, days, seed=seed, draw=draw)
    assert span.covers(window)
    assert window.length == timedelta(days=days)
    assert (window.start - span.start) % timedelta(days=1) == timedelta()


def test_random_windows_do_not_depend_on_the_state_of_a_process() -> None:
    span = DateWindow(START, START + timedelta(days=400))
    np.random.seed(1)
    one = [random_window(span, 14, seed=7, draw=k) for k in range(5)]
    np.random.seed(2)
    expected = np.random.random(3).tolist()
    np.random.seed(2)
    other = [random_window(span, 14, seed=7, draw=k) for k in reversed(range(5))]
    assert one == other[::-1]
    assert np.random.random(3).tolist() == expected
    assert len(set(one)) == 5
    assert one != [random_window(span, 14, seed=8, draw=k) for k in range(5)]


def test_random_windows_reach_both_ends() -> None:
    span = DateWindow(START, START + timedelta(days=5))
    starts = {random_window(span, 3, seed=0, draw=k).start.day for k in range(50)}
    assert starts == {1, 2, 3}


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
