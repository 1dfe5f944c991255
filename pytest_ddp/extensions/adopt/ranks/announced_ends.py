"""Tests that end their own process on purpose, and announce the exit code."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

_tell: Callable[[tuple[int, ...], bool], None] | None = None


def tell_by(tell: Callable[[tuple[int, ...], bool], None]) -> None:
    """Set, for the life of the rank, the function that sends announced codes to the controller."""
    global _tell
    _tell = tell


@contextlib.contextmanager
def announced(codes: tuple[int, ...], *, others: bool = False) -> Iterator[None]:
    """In the block the process may end with one of these codes, or with any code but these.

    Args:
        codes: as of ``subprocess``: negative for signals.
        others: whether the process may end with any code but these.
    """
    assert _tell is not None, "no rank"
    _tell(codes, others)
    try:
        yield
    finally:
        _tell((), False)
