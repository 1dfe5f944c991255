"""When the exit of a served process is judged: after all code that may check it has run."""

from __future__ import annotations

import enum


class ExitDeadline(enum.IntEnum):
    """The phase at whose end the exit is judged; later if the process still runs."""

    NOW = 0
    """The phase that started it."""
    TEARDOWN = 1
    """The test's teardown: a function-scoped fixture started it."""
    END = 2
    """The session's last teardown: a fixture of a wider scope started it."""
