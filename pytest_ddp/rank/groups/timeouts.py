"""When a wait of this rank ends by itself: by the timeout of its group, or by one of its own.

Nothing is noted when a wait begins, which would cost something for each. Of a collective the
flight recorder knows both its timeout and its begin; of another wait, the look before the first
one that finds it tells what it cannot be older than.
"""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

from pytest_ddp.rank.groups.backends import name_of
from pytest_ddp.rank.groups.calls import Call
from pytest_ddp.rank.groups.default import groups
from pytest_ddp.system.own import time


class Pace:
    """Looks at what one thread waits for in one test."""

    def __init__(self) -> None:
        self._looked = time.monotonic()
        self._since = self._looked
        self._call: Call | None = None

    def look(self, call: Call | None) -> None:
        """The thread waits for this now."""
        now = time.monotonic()
        if call is not self._call:
            self._call, self._since = call, self._looked
        self._looked = now

    def left(self, call: Call, left: float | None) -> float | None:
        """Seconds until the thread goes on, where its caller may have set a limit of its own.

        Args:
            call: what it waits for.
            left: seconds until that ends by itself; None if it does not.
        """
        own = None if call.limit is None else call.limit - (self._looked - self._since)
        return min((known for known in (own, left) if known is not None), default=None)

    def left_of_receive(self, call: Call) -> float | None:
        """The same for a receive, which is given the time of its group."""
        seconds = _seconds_of(call.group)
        waited = self._looked - self._since
        return self.left(call, None if seconds is None else seconds - waited)


def left_of(entry: dict[str, Any]) -> float | None:
    """Seconds until a timeout ends a collective of the flight recorder; None for never."""
    milliseconds: int = entry.get("timeout_ms") or 0
    if milliseconds <= 0:
        return None
    begun: int = entry["time_created_ns"]
    return milliseconds / 1e3 - (time.time_ns() - begun) / 1e9


def _seconds_of(name: str) -> float | None:
    """The shortest timeout of a group's backends; None if they tell none."""
    found = (_timeouts(group) for group in groups() if name_of(group) == name)
    return min(itertools.chain.from_iterable(found), default=None)


def _timeouts(group: Any) -> list[float]:
    timeouts: list[float] = []
    for device in group._device_types:
        # A backend may have no options, and a wrapper for debugging hides them.
        with contextlib.suppress(AttributeError, RuntimeError):
            timeouts.append(group._get_backend(device).options._timeout.total_seconds())
    return timeouts
