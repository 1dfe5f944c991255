"""When the end of a served process is judged: after all who may look at it have done so."""

from __future__ import annotations

import enum


class ExitDeadline(enum.IntEnum):
    """The end of which phase, at the earliest; a later one where the process still runs."""

    NOW = 0
    """The phase that has started it."""
    TEARDOWN = 1
    """The test's: a fixture of the test alone has started it."""
    END = 2
    """The session's last teardown: a wider fixture has."""
