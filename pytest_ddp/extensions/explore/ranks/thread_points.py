"""Points and tokens of threads: the begin of each that the test starts, its end, and joins."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

from pytest_ddp.extensions.explore.ranks.recording import Recording
from pytest_ddp.system.stdlib import threading

_NUMBER = "_pytest_ddp_number"
"""The attribute of a thread that has its number."""
_LIBRARIES = ("QueueFeederThread", "pytest-ddp", "tqdm")
"""Beginnings of the names of threads that the standard library, we or tqdm start for a call."""


@contextlib.contextmanager
def watching_threads(recording: Recording, begin: str) -> Iterator[None]:
    """The threads that are started in the block are those of the test.

    Args:
        recording: of the run.
        begin: the name of the point at which a thread begins.
    """
    kind: Any = threading.Thread
    start, join = kind.start, kind.join

    def token(thread: Any, word: str) -> list[str]:
        number = vars(thread).get(_NUMBER)
        return [] if number is None else [f"thread {recording.rank} {number} {word}"]

    @functools.wraps(start)
    def starting(self: Any) -> None:
        is_tests = recording.own() is not None and not self.name.startswith(_LIBRARIES)
        if is_tests and _NUMBER not in vars(self):
            vars(self)[_NUMBER] = recording.new_number()
            site = ""
            with recording.guarded:
                site = recording.site()
            self.run = functools.partial(run, self, self.run, site)
            recording.note(gives=token(self, "begins"))
        start(self)

    def run(self: Any, original: Any, site: str) -> None:
        vars(self).pop("run", None)
        recording.begin_thread(vars(self)[_NUMBER])
        recording.point(begin, takes=token(self, "begins"), site=site)
        try:
            original()
        finally:
            recording.note(gives=token(self, "ends"))
            recording.end_thread()

    @functools.wraps(join)
    def joining(self: Any, timeout: float | None = None) -> None:
        join(self, timeout)
        if not self.is_alive():
            recording.note(takes=token(self, "ends"))

    kind.start, kind.join = starting, joining
    try:
        yield
    finally:
        if kind.start is starting:
            kind.start = start
        if kind.join is joining:
            kind.join = join
