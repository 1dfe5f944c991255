"""How the ranks of a training run ended, in words; pure."""

from __future__ import annotations

import signal

from ddp_conformance.history import History
from ddp_conformance.training_history import Ended


def ends_of(history: History) -> list[Ended]:
    """How the ranks ended, by rank."""
    ends = [record for record in history if isinstance(record, Ended)]
    return sorted(ends, key=lambda end: end.rank)


def came_through(history: History) -> bool:
    """Whether every rank came to the end of its entry."""
    return all(end.returned and end.code == 0 for end in ends_of(history))


def in_order(history: History) -> list[Ended]:
    """The ranks' ends, the first one first."""
    return sorted(ends_of(history), key=lambda end: end.order)


def words_of(end: Ended) -> str:
    """How and where a rank ended, on one line."""
    phase = f" in {end.phase}" if end.phase else ""
    site = f" at {end.site}" if end.site else ""
    return f"rank {end.rank} {how_it_ended(end)}{phase}{site}"


def how_it_ended(end: Ended) -> str:
    """In words: exception, signal, exit code, or that it had to be stopped."""
    if end.code is None:
        return "had not ended and was stopped"
    if end.code < 0:
        return f"died of {signal.Signals(-end.code).name}"
    if end.error:
        return f"raised {end.error}"
    if end.returned:
        return f"ended with exit code {end.code}"
    return f"left with exit code {end.code} before its entry had come to its end"
