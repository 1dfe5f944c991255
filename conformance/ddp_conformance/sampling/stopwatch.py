"""How long a part takes, for bounds that decide how much is looked at."""

from __future__ import annotations

import os
import time


class Stopwatch:
    """Processor time of this process and its children, and at least a tenth of the clock's.

    The clock alone would have a busy machine see less than a quiet one; processor time alone would
    wait long for a part that itself waits.
    """

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._used = _used()

    def seconds(self) -> float:
        """Since it was made."""
        return max(_used() - self._used, (time.monotonic() - self._begin) / 10)


def _used() -> float:
    return time.process_time() + sum(os.times()[2:4])
