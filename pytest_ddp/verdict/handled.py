"""Exceptions that ranks handle: if a handler communicates and hangs, the exception is the cause."""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter

from pytest_ddp.evidence.pythonstacks import shorten
from pytest_ddp.evidence.wording import ranks_text
from pytest_ddp.wire.survey import Handled

ByRank = Mapping[int, Handled | None]
"""For every rank of a test; None for a rank that handles no exception, or if unknown."""


def lead(handled: ByRank) -> str:
    """The beginning of the verdict if ranks handle exceptions, and not all of the same type."""
    if _are_all_equal(handled):
        return ""
    groups: dict[tuple[str, str], list[tuple[int, Handled]]] = {}
    for rank, error in sorted(handled.items(), key=itemgetter(0)):
        if error is not None:
            groups.setdefault((error.kind, error.place), []).append((rank, error))
    words = [
        f"{group[0][1]} ({ranks_text(rank for rank, _ in group)}, {_line(group[0][1])})"
        for group in groups.values()
    ]
    return f"while handling {' and '.join(words)}: " if words else ""


def note(handled: ByRank) -> str:
    """A sentence for the notes if all ranks handle the same type, as a legal test may."""
    if not _are_all_equal(handled):
        return ""
    error = next(filter(None, handled.values()))
    return f"all ranks wait in a handler of {error} ({_line(error)})"


def _are_all_equal(handled: ByRank) -> bool:
    kinds = {error and error.kind for error in handled.values()}
    return len(kinds) == 1 and None not in kinds


def _line(error: Handled) -> str:
    return shorten(error.place.partition(" in ")[0])
