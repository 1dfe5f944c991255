"""A time axis on which a long silence takes little room.

A hang is some milliseconds of work and then nothing for half a second or five minutes: drawn to
scale, the work would be one pixel wide.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

_SHARE = 0.6
"""A silence that is longer than this share of the remaining time is shortened."""
_MOST = 3
"""Silences that are shortened at most, to keep the axis readable."""
_GAP = 150.0
"""Pixels of a shortened silence."""
_NEAR = 90.0
"""Pixels between ticks, about."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A section of the axis."""

    begin: int
    """Nanoseconds."""
    end: int
    left: float
    """Pixels."""
    right: float
    silent: bool
    """Whether nothing begins or ends in it on any rank; then it is not drawn to scale."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Converts nanoseconds to pixels."""

    segments: tuple[Segment, ...]

    @classmethod
    def of(cls, moments: Iterable[int], duration: int, left: float, right: float) -> Scale:
        """The scale for a test of this duration.

        Args:
            moments: those at which something begins or ends, in nanoseconds.
            duration: nanoseconds.
            left: pixel of the test's begin.
            right: pixel of its end.
        """
        duration = max(duration, 1)
        inside = sorted({0, duration, *(at for at in moments if 0 < at < duration)})
        silences = _silences(inside, duration)
        drawn = duration - sum(end - begin for begin, end in silences)
        pixels = (right - left - _GAP * len(silences)) / max(drawn, 1)
        segments, x, at = [], left, 0
        for begin, end in [*silences, (duration, duration)]:
            if begin > at:
                segments.append(Segment(at, begin, x, x + (begin - at) * pixels, silent=False))
                x = segments[-1].right
            if end > begin:
                segments.append(Segment(begin, end, x, x + _GAP, silent=True))
                x = segments[-1].right
            at = end
        return cls(tuple(segments))

    def x(self, at: float) -> float:
        """The pixel of a moment; a moment outside of the test is at its edge."""
        index = bisect.bisect_left(self.segments, at, key=lambda segment: segment.end)
        segment = self.segments[min(index, len(self.segments) - 1)]
        share = (at - segment.begin) / (segment.end - segment.begin)
        return segment.left + min(max(share, 0.0), 1.0) * (segment.right - segment.left)

    def ticks(self) -> Iterator[int]:
        """Round moments in nanoseconds, about as far apart as their labels are wide."""
        drawn = [segment for segment in self.segments if not segment.silent]
        pixels = sum(segment.right - segment.left for segment in drawn)
        time = sum(segment.end - segment.begin for segment in drawn)
        step = _round_up(time * _NEAR / pixels) if pixels else 0
        for segment in drawn:
            if step:
                yield from range(-(-segment.begin // step) * step, segment.end + 1, step)


def _silences(moments: list[int], duration: int) -> list[tuple[int, int]]:
    gaps = sorted(pairwise(moments), key=lambda gap: gap[0] - gap[1])
    left, chosen = duration, []
    for begin, end in gaps[:_MOST]:
        # A part of the axis must remain that is drawn to scale.
        if end - begin < _SHARE * left or end - begin == left:
            break
        chosen.append((begin, end))
        left -= end - begin
    return sorted(chosen)


def _round_up(time: float) -> int:
    """The next of 1, 2, 5, 10, 20, 50, ..."""
    power = 10 ** math.floor(math.log10(max(time, 1)))
    return int(next(power * factor for factor in (1, 2, 5, 10) if power * factor >= time))


def time_words(nanoseconds: float) -> str:
    """``850 µs``, ``12.3 ms``, ``4.20 s``: three digits."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        value = nanoseconds / size
        if value >= 0.9995:
            return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f} {unit}"
    return f"{nanoseconds:.0f} ns" if nanoseconds >= 0.5 else "0"
