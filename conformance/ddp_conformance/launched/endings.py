"""How the ranks of a training run ended, in words; pure."""

from __future__ import annotations

import signal

from ddp_conformance.framework.history import History
from ddp_conformance.launched.history import Ended


def ends_of(history: History) -> list[Ended]:
    """How the ranks ended, by rank."""
    ends = [record for record in history if isinstance(record, Ended)]
    return sorted(ends, key=lambda end: end.rank)


def came_through(history: History) -> bool:
    """Whether every rank came to the end of its entry; False without any rank."""
    ends = ends_of(history)
    return bool(ends) and all(_came_through(end) for end in ends)


def broke_off(history: History) -> bool:
    """Whether some rank is known not to have come to the end of its entry."""
    return any(not _came_through(end) for end in ends_of(history))


def ranks_that_came_through(history: History) -> list[int]:
    """The ranks that came to the end of their entry, and so left all their records."""
    return [end.rank for end in ends_of(history) if _came_through(end)]


def _came_through(end: Ended) -> bool:
    return end.returned and end.code == 0


def in_order(history: History) -> list[Ended]:
    """The ranks' ends, the first one first.

    One that died of a signal comes before those that raised: its connections are closed before
    the kernel has ended it, so that on a busy machine a peer can raise, and end, sooner. Not so
    SIGABRT, which is also how gloo ends a rank that has lost its peer.
    """
    return sorted(ends_of(history), key=lambda end: (not _was_killed(end), end.order))


def _was_killed(end: Ended) -> bool:
    return end.code is not None and end.code < 0 and end.code != -signal.SIGABRT


def words_of(end: Ended) -> str:
    """How and where a rank ended, on one line."""
    phase = f" in {end.phase}" if end.phase else ""
    site = f" at {end.site}" if end.site else ""
    return f"rank {end.rank} {how_it_ended(end)}{phase}{site}"


def how_it_ended(end: Ended) -> str:
    """How a process ended, in words: exception, signal, exit code, or that it had to be stopped."""
    if end.code is None:
        return "had not ended and was stopped"
    if end.code < 0:
        return f"died of {_signal(-end.code)}"
    if end.error:
        return f"raised {end.error}{', and yet ended with exit code 0' if end.code == 0 else ''}"
    if end.returned:
        return f"ended with exit code {end.code}"
    return f"left with exit code {end.code} before its entry had come to its end"


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # of the real-time signals, only the first and the last have names
        return f"signal {number}"
