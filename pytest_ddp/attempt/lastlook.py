"""Takes a snapshot of all ranks at the timeout, before they are stopped."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pytest_ddp.attempt.part import Part
from pytest_ddp.evidence.outcome import Expiry
from pytest_ddp.proof.expiry import LastLook, expire
from pytest_ddp.proof.prober import Prober
from pytest_ddp.system.own import time
from pytest_ddp.wire.survey import Standing

ANSWER_LIMIT = 1.0
"""Seconds that a rank gets to answer a probe."""
_BETWEEN_LOOKS = 0.1
"""Seconds; long enough for the kernel's clock ticks (10 ms) to show whether a rank computes."""
_BUSY = 0.1
"""Least share of a processor that a computing rank uses; more than a thread that waits for the GIL,
which wakes up 200 times a second."""
_SUSPENDED = ("T", "t")
"""State letters in ``/proc`` of a process that a signal or a debugger has stopped."""


def look_twice(
    parts: Sequence[Part], prober: Prober, hear_until: Callable[[float, Callable[[], bool]], None]
) -> Expiry:
    """Probe the ranks twice, to find which of them hold up the others.

    Args:
        parts: all ranks of the test.
        prober: sends the probes.
        hear_until: takes messages until a moment (monotonic clock), or until a condition holds.
    """

    def last_answers() -> dict[int, Standing]:
        prober.ask()
        hear_until(time.monotonic() + ANSWER_LIMIT, prober.is_answered)
        return prober.answers()

    begin = time.monotonic()
    cpu_before = {part: part.process.glance()[1] for part in parts}
    before = last_answers()
    hear_until(time.monotonic() + _BETWEEN_LOOKS, lambda: False)
    now = last_answers()
    least = _BUSY * (time.monotonic() - begin)
    looks = []
    for part in parts:
        rank, (state, cpu) = part.process.rank, part.process.glance()
        suspended, busy = state in _SUSPENDED, cpu - cpu_before[part] > least
        answers = before.get(rank), now.get(rank), part.standing
        looks.append(LastLook(rank, part.ending is not None, suspended, busy, *answers))
    return expire(looks)
