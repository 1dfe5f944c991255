"""Tests that are about the end of their own process, and have said which one that is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

_tell: Callable[[tuple[int, ...], bool], None] | None = None


def tell_by(tell: Callable[[tuple[int, ...], bool], None]) -> None:
    """For the rank's life alone: how the controller hears of codes, and whether of all others."""
    global _tell
    _tell = tell


@contextlib.contextmanager
def announced(codes: tuple[int, ...], *, others: bool = False) -> Iterator[None]:
    """In the block the process may end with one of these codes, or with any other but them.

    Args:
        codes: as of ``subprocess``: negative for signals.
        others: whether they are those that it must not end with.
    """
    assert _tell is not None, "no rank"
    _tell(codes, others)
    try:
        yield
    finally:
        _tell((), False)
