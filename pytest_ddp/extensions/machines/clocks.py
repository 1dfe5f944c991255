"""How far the clocks of a machine are ahead of ours, by round trips over its connection.

A sample has four times: ours when the request was sent, the machine's when it was received and
when the reply was sent, ours when the reply was received. Whatever the two delays are, the offset
is within half of their sum of the middle: unequal delays bias the middle, by no more than that. The
best of the last samples counts; older ones lose by what the clocks may have drifted since.

This is RFC 5905 (NTP), section 8, and its clock filter, section 10.
"""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass

from pytest_ddp.protocol.host_messages import Clock
from pytest_ddp.system.stdlib import time

_QUESTION = struct.Struct(">q")
_ANSWER = struct.Struct(">qqqq")
DRIFT = 1e-4
"""Seconds that two clocks may drift apart in one: twice what a quartz is off by, and more than
clocks are that NTP keeps, while it does not slew one of them."""
_KEPT = 64
"""Samples that are kept, a minute of them: drift has used up the advantage of older ones."""
_FIRST = 8
"""Samples that are taken at once, before any rank exists."""
_INTERVAL = 1.0
"""Seconds between two samples after these."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One round trip; nanoseconds, on monotonic clocks."""

    sent: int
    received: int
    """The time on the machine's clock at which the request came, as is ``replied``."""
    replied: int
    returned: int
    wall_ahead: int
    """The machine's wall clock less its monotonic one, less the same difference of our clocks."""

    @property
    def ahead(self) -> int:
        return (self.received - self.sent + self.replied - self.returned) // 2

    def uncertainty(self, now: int) -> int:
        """Half of both delays, and the drift since then."""
        delays = (self.returned - self.sent) - (self.replied - self.received)
        return round(delays / 2 + DRIFT * (now - self.returned))


class Clocks:
    """The clocks of one machine, as far as they are measured."""

    def __init__(self) -> None:
        self.known: Clock | None = None
        """What the last sample has shown; None before the first."""
        self._samples: deque[Sample] = deque(maxlen=_KEPT)
        self._taken = 0
        self._sent: int | None = None
        """When the request was sent that has no reply yet."""
        self._next = 0.0

    def question(self) -> bytes:
        """A request to send to the machine; empty if it is not time."""
        if self._sent is not None or time.monotonic() < self._next:
            return b""
        self._sent = time.monotonic_ns()
        return _QUESTION.pack(self._sent)

    def take(self, reply: bytes, returned: float) -> None:
        """Take a reply of that time (monotonic clock); a reply without a request is ignored."""
        if len(reply) != _ANSWER.size or self._sent is None:
            return
        sent, received, replied, offset = _ANSWER.unpack(reply)
        if sent != self._sent:
            return
        self._sent = None
        self._taken += 1
        if self._taken >= _FIRST:
            self._next = time.monotonic() + _INTERVAL
        sample = Sample(sent, received, replied, round(returned * 1e9), offset - _wall_offset())
        self._samples.append(sample)
        self.known = estimate(self._samples, sample.returned)


def estimate(samples: deque[Sample], now: int) -> Clock:
    """The clock that one or more samples show, at a time of our monotonic clock."""
    best = min(samples, key=lambda sample: sample.uncertainty(now))
    # A wall clock may be set at any time: its last sample counts.
    wall_ahead = best.ahead + samples[-1].wall_ahead
    return Clock(best.ahead, wall_ahead, best.uncertainty(now))


def answer(question: bytes, received: float) -> bytes:
    """The machine's reply to a request that was received then (monotonic clock)."""
    if len(question) != _QUESTION.size:
        return b""
    (sent,) = _QUESTION.unpack(question)
    return _ANSWER.pack(sent, round(received * 1e9), time.monotonic_ns(), _wall_offset())


def _wall_offset() -> int:
    return time.time_ns() - time.monotonic_ns()
