"""When a wait of this rank will time out: by its group's timeout, or by the caller's.

Nothing is recorded when a wait begins, as that would cost something for each. The flight recorder
has timeout and begin of a collective. The age of any other wait has an upper bound: the time since
the last look that did not find it.
"""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

from pytest_ddp.rank.groups.default_group import groups
from pytest_ddp.rank.operations.operation import Operation, name_of
from pytest_ddp.system.stdlib import time


class WaitTimeouts:
    """Ages and timeouts of one thread's waits in one test, from repeated looks."""

    def __init__(self) -> None:
        self._looked = time.monotonic()
        """When the thread was last looked at."""
        self._since = self._looked
        """The last look before the current call was found."""
        self._call: Operation | None = None

    def look(self, call: Operation | None) -> None:
        """Record what the thread waits for now."""
        now = time.monotonic()
        if call is not self._call:
            self._call, self._since = call, self._looked
        self._looked = now

    def left(self, call: Operation, left: float | None) -> float | None:
        """Seconds until the thread goes on, if the caller's own timeout is taken into account.

        Args:
            call: what it waits for.
            left: seconds until the group's timeout ends the call; None if it has none.
        """
        own = None if call.limit is None else call.limit - (self._looked - self._since)
        return min((known for known in (own, left) if known is not None), default=None)

    def left_of_message(self, call: Operation) -> float | None:
        """Seconds until a message goes on, to which the timeout of its group applies."""
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
    """The shortest timeout of a group's backends; None if none has one."""
    found = (_timeouts(group) for group in groups() if name_of(group) == name)
    return min(itertools.chain.from_iterable(found), default=None)


def _timeouts(group: Any) -> list[float]:
    timeouts: list[float] = []
    for device in group._device_types:
        # A backend may lack options, and torch's debug wrapper hides them.
        with contextlib.suppress(AttributeError, RuntimeError):
            timeouts.append(group._get_backend(device).options._timeout.total_seconds())
    return timeouts
