"""How far the clocks of a machine are ahead of ours, by round trips over its line.

Four moments make a sample: ours when we asked, the machine's when it heard that and when it
answered, ours when the answer came. Whatever the ways took, the truth lies within half of their
sum around the middle: ways of unlike lengths bias the middle, by no more than that. Of the last
samples the best counts, older ones as less certain by what clocks may drift apart since.

This is RFC 5905 (NTP), section 8, and its clock filter, section 10.
"""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass

from pytest_ddp.system.own import time
from pytest_ddp.wire.hosting import Clock

_QUESTION = struct.Struct(">q")
_ANSWER = struct.Struct(">qqqq")
DRIFT = 1e-4
"""Seconds that two clocks may drift apart in one: twice what a quartz is off by, and more than
clocks are that NTP keeps, while it does not slew one of them."""
_KEPT = 64
"""Samples, a minute of them: what an older one was better by, it has drifted by then."""
_FIRST = 8
"""Samples that are taken one after the other, before any rank is there."""
_INTERVAL = 1.0
"""Seconds between two later ones."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One round trip; nanoseconds, on monotonic clocks."""

    asked: int
    heard: int
    """On the machine's clock, as is the next."""
    answered: int
    came: int
    wall_ahead: int
    """Its wall clock less its monotonic one, less the same of ours."""

    @property
    def ahead(self) -> int:
        return (self.heard - self.asked + self.answered - self.came) // 2

    def uncertainty(self, now: int) -> int:
        """Half of what the ways took, and the drift since then."""
        ways = (self.came - self.asked) - (self.answered - self.heard)
        return round(ways / 2 + DRIFT * (now - self.came))


class Clocks:
    """What is known of one machine's."""

    def __init__(self) -> None:
        self.known: Clock | None = None
        """As of the last sample; None before the first."""
        self._samples: deque[Sample] = deque(maxlen=_KEPT)
        self._taken = 0
        self._asked: int | None = None
        """When the question was asked whose answer has not come."""
        self._next = 0.0

    def question(self) -> bytes:
        """What to ask the machine now; empty if it is not time."""
        if self._asked is not None or time.monotonic() < self._next:
            return b""
        self._asked = time.monotonic_ns()
        return _QUESTION.pack(self._asked)

    def take(self, told: bytes, came: float) -> None:
        """Take what came then (monotonic clock); what answers no question of ours is void."""
        if len(told) != _ANSWER.size or self._asked is None:
            return
        asked, heard, answered, offset = _ANSWER.unpack(told)
        if asked != self._asked:
            return
        self._asked = None
        self._taken += 1
        if self._taken >= _FIRST:
            self._next = time.monotonic() + _INTERVAL
        sample = Sample(asked, heard, answered, round(came * 1e9), offset - _wall_offset())
        self._samples.append(sample)
        self.known = estimate(self._samples, sample.came)


def estimate(samples: deque[Sample], now: int) -> Clock:
    """What some samples come to, one at least, at a moment of our monotonic clock."""
    best = min(samples, key=lambda sample: sample.uncertainty(now))
    # A wall clock may be set at any time: the last word on it is the one that counts.
    wall_ahead = best.ahead + samples[-1].wall_ahead
    return Clock(best.ahead, wall_ahead, best.uncertainty(now))


def answer(question: bytes, heard: float) -> bytes:
    """The machine's answer to a question that came then (monotonic clock)."""
    if len(question) != _QUESTION.size:
        return b""
    (asked,) = _QUESTION.unpack(question)
    return _ANSWER.pack(asked, round(heard * 1e9), time.monotonic_ns(), _wall_offset())


def _wall_offset() -> int:
    return time.time_ns() - time.monotonic_ns()
