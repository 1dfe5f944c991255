"""How long a part takes, for limits on how much of it is checked."""

from __future__ import annotations

import os
import time


class Stopwatch:
    """Processor time of this process and its children, and at least a tenth of the clock's.

    By the clock alone, a busy machine would check less than a quiet one; by processor time alone, a
    part that waits would be checked for long.
    """

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._used = _used()

    def seconds(self) -> float:
        """Seconds since the stopwatch was made."""
        return max(_used() - self._used, (time.monotonic() - self._begin) / 10)


def _used() -> float:
    return time.process_time() + sum(os.times()[2:4])
