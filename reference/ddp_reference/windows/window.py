"""Date windows, and the rules that pick the next one.

Every rule is a pure function of its arguments. A rule that drew from a process's
own random state would give each rank a window of its own, because ranks seed
differently; a rule that kept its position in a callback would have to be restored
separately on resume.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timedelta

import numpy as np

DateLike = date | str
"""A day or a moment: ``date``, ``datetime`` or ISO 8601 text, without time zone (UTC)."""


def parse_date(value: DateLike) -> datetime:
    """Read a day (its midnight) or a moment as a naive UTC ``datetime``.

    Raises:
        ValueError: not ISO 8601, or with a time zone.
    """
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError as error:
            raise ValueError(f"{value!r} is no date; write it as 2024-01-31") from error
    elif isinstance(value, datetime):
        moment = value
    else:
        moment = datetime(value.year, value.month, value.day)
    if moment.tzinfo is not None:
        raise ValueError(f"{value!r} carries a time zone; archive times are UTC without one")
    return moment


@dataclass(frozen=True, order=True)
class DateWindow:
    """A half-open span of time, ``start <= t < end``, in naive UTC."""

    start: datetime
    """First moment inside."""
    end: datetime
    """First moment after."""

    @classmethod
    def of(cls, start: DateLike, end: DateLike, name: str = "window") -> DateWindow:
        """Build one from days, moments or ISO text; ``name`` says whose it is in errors.

        Raises:
            ValueError: a date that cannot be read, or ``start`` not before ``end``.
        """
        window = cls(parse_date(start), parse_date(end))
        if window.start >= window.end:
            raise ValueError(
                f"{name} dates are out of order: start {window.start:%Y-%m-%d %H:%M} is not "
                f"before end {window.end:%Y-%m-%d %H:%M}; the end is the first day outside"
            )
        return window

    @property
    def id(self) -> str:
        """ISO 8601 interval: equal on all ranks for equal bounds, readable in a report."""
        return f"{self.start:%Y-%m-%dT%H:%M}/{self.end:%Y-%m-%dT%H:%M}"

    @property
    def length(self) -> timedelta:
        """The length from start to end."""
        return self.end - self.start

    def contains(self, moment: datetime) -> bool:
        """Whether ``moment`` lies inside; the end does not."""
        return self.start <= moment < self.end

    def covers(self, other: DateWindow) -> bool:
        """Whether ``other`` lies inside as a whole."""
        return self.start <= other.start and other.end <= self.end

    def overlaps(self, other: DateWindow) -> bool:
        """Whether a moment lies in both."""
        return self.start < other.end and other.start < self.end


def first_window(span: DateWindow, days: int) -> DateWindow:
    """The window of ``days`` days at the start of ``span``."""
    return DateWindow(span.start, span.start + timedelta(days=days))


def random_window(span: DateWindow, days: int, *, seed: int, draw: int) -> DateWindow:
    """The window of ``days`` whole days that draw number ``draw`` of ``seed`` picks in ``span``.

    Each call has its own generator: the global ones are neither read nor moved, so the
    draw is the same on ranks in any random state, after a resume, and with or without
    sanity checking.
    """
    positions = (span.length - timedelta(days=days)) // timedelta(days=1) + 1
    offset = int(np.random.default_rng([seed, draw]).integers(positions))
    start = span.start + timedelta(days=offset)
    return DateWindow(start, start + timedelta(days=days))


def slide_window(
    span: DateWindow, current: DateWindow, days: int, *, stride_days: int
) -> DateWindow:
    """The window of ``days`` days that follows ``current`` by ``stride_days`` in ``span``.

    One that would leave ``span`` starts over at its beginning, and so does one whose
    predecessor lay outside.
    """
    start = current.start + timedelta(days=stride_days)
    following = DateWindow(start, start + timedelta(days=days))
    return following if span.covers(following) else first_window(span, days)
