"""The trace that a rank writes for ``--ddp-trace``, line by line as things happen.

A line is a JSON list: kind, time and details. Each is one ``write``, so that all lines until then
are complete whatever happens to the process. Times are nanoseconds of the monotonic clock, which
the processes of one machine share.
"""

from __future__ import annotations

import enum

from pytest_ddp.system.stdlib import json, os, time

_LIMIT = 32 * 2**20
"""Bytes of a rank's file for one test, as a test that loops for minutes must not fill the disk."""


class TraceLine(enum.StrEnum):
    """The first element of a line; the docstrings name the elements from the third on."""

    PHASE = "phase"
    """A phase begins: number of open ones around it, name, file and line of its begin or null."""
    LEFT = "left"
    """Phases have ended: number of those still open."""
    GROUP = "group"
    """A process group when the test began: name, collectives before the test."""
    CALL = "call"
    """A collective, send or receive is called: key, group, number on the group since it
    was made (0 for a message), operation, elements, dtype, reduce operation, root or peer,
    file and line or null. The key is unique among the calls that are not complete."""
    WAITED = "waited"
    """A wait for a call has ended: key, name of the exception that ended it or null."""
    RECORDED = "recorded"
    """A collective that only torch's flight recorder has: its record id, group, number on the
    group, operation, elements, dtype, time of its begin, whether it is complete. A later line with
    the same record id replaces it."""
    FULL = "full"
    """The file has reached its limit; nothing follows."""


class TraceLog:
    """The writing side, in a rank."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._left = _LIMIT
        # A forked child must not write to its parent's trace.
        os.register_at_fork(after_in_child=self._stop)

    def write(self, what: TraceLine, *details: object) -> None:
        """Write a line; if that is impossible, it is lost and no test fails."""
        if self._left <= 0:
            return
        line = json.dumps((what, time.monotonic_ns(), *details)).encode() + b"\n"
        self._left -= len(line)
        if self._left <= 0:
            line = json.dumps((TraceLine.FULL, time.monotonic_ns())).encode() + b"\n"
        try:
            os.write(self._file, line)
        except OSError:  # the test closed every descriptor, or the disk is full
            self._stop()

    def begin(self) -> None:
        """Reset the limit for a new test."""
        if self._left != -1:
            self._left = _LIMIT

    def _stop(self) -> None:
        self._left = -1
