"""What threads of ranks did in one run, as far as its order matters. Pure.

An event is a *point*, at which a thread can be held, or the end of a wait. Events of different
threads are ordered by *tokens*: an event that takes a token comes, on every schedule, after the
event that gives it. So a completed all_reduce of three ranks takes three tokens, one from each
issue, a completed broadcast takes that of the root alone, and a receive that of its send. A token
with several givers orders nothing: which of them came first is chance.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from pytest_ddp.extensions.explore.ranks.accesses import Access

BEGIN = "begin"
"""The name of the point at which a thread begins, and thread 0 the test."""


class RankThread(NamedTuple):
    """A thread of a rank."""

    rank: int
    thread: int = 0
    """0 for the thread that runs the test, else its place in the order in which the rank's test has
    started threads, from 1."""


class Event(NamedTuple):
    """What a thread did at one moment."""

    thread: RankThread
    at: float
    """When, in seconds of a clock that all ranks share; of a point, when the thread goes on, so
    after a hold."""
    point: str = ""
    """The name of the point, such as ``open:best.ckpt``; empty where nothing can be held."""
    number: int = 0
    """How often this thread has passed points of this name, this time included."""
    site: str = ""
    """The line of the test's code, such as ``trainer.py:88``."""
    accesses: tuple[Access, ...] = ()
    gives: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()


Events: TypeAlias = tuple[Event, ...]
"""The events of a thread, in its order."""

Threads: TypeAlias = tuple[Events, ...]
"""What all threads of all ranks did in one run: of each thread its events, in any order."""
