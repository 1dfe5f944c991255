"""The last look at ranks whose time is over, before they are stopped."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pytest_ddp.attempt.part import Part
from pytest_ddp.evidence.outcome import Expiry
from pytest_ddp.proof.expiry import LastLook, expire
from pytest_ddp.proof.prober import Prober
from pytest_ddp.system.own import time
from pytest_ddp.wire.survey import Standing

ANSWER_LIMIT = 1.0
"""Seconds that a rank is given to say where it stands."""
_BETWEEN_LOOKS = 0.1
_BUSY = 0.1
"""Share of a processor that a rank uses at least if it computes; one that waits for the GIL wakes
up 200 times a second."""
_SUSPENDED = ("T", "t")
"""State letters of a process that a signal, or a debugger, has stopped."""


def look_twice(
    parts: Sequence[Part], prober: Prober, hear_until: Callable[[float, Callable[[], bool]], None]
) -> Expiry:
    """Look twice at ranks whose time is over, to say who holds up whom.

    Args:
        parts: all ranks of the test.
        prober: asks them where they stand.
        hear_until: takes what they say until a moment (monotonic clock), or something is so.
    """

    def last_answers() -> dict[int, Standing]:
        prober.ask()
        hear_until(time.monotonic() + ANSWER_LIMIT, prober.is_answered)
        return prober.answers()

    begin = time.monotonic()
    spent = {part: part.process.glance()[1] for part in parts}
    before = last_answers()
    hear_until(time.monotonic() + _BETWEEN_LOOKS, lambda: False)
    now = last_answers()
    least = _BUSY * (time.monotonic() - begin)
    looks = []
    for part in parts:
        rank, (state, later) = part.process.rank, part.process.glance()
        suspended, busy = state in _SUSPENDED, later - spent[part] > least
        answers = before.get(rank), now.get(rank), part.standing
        looks.append(LastLook(rank, part.ending is not None, suspended, busy, *answers))
    return expire(looks)
