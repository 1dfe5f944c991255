"""The records that the journal keeps of calls on process groups."""

from __future__ import annotations

import weakref
from types import CodeType
from typing import NamedTuple, TypeAlias

import torch
import torch.distributed as dist

Piece: TypeAlias = tuple[tuple[int, torch.dtype], ...]
"""What one rank sends to another: elements and dtype of each tensor, several if coalesced."""

KEPT = 2048
"""How many calls are kept to explain a failure; counters and digests cover all of them."""


class Site(NamedTuple):
    """A place in the user's code."""

    code: CodeType
    line: int

    def __str__(self) -> str:
        return f"{self.code.co_filename}:{self.line}"


class Call(NamedTuple):
    """One collective, send or receive."""

    group: str
    number: int
    """Number of the collective on its group, from 1; 0 for a send or receive."""
    operation: str
    numel: int | None
    """Elements of the tensor, where they must be the same on all ranks."""
    dtype: torch.dtype | None
    reduce_op: str | None
    root: int | None
    """Source or destination in the group of a collective; the peer of a message."""
    tag: int | None
    site: Site
    limit: float | None = None
    """Timeout in seconds that the caller passed to ``wait``."""
    sends: tuple[Piece, ...] = ()
    """What each member gets, in group order; a single entry if all get the same. Empty for
    operations that are not made of pieces."""
    receives: tuple[Piece, ...] = ()
    """What is expected of each member, in the same form."""


class OpenMessages:
    """Sends and receives of a test that have not been waited for.

    gloo gives up a message whose work is dropped before it is complete, and later messages between
    the two ranks may then be matched wrongly.
    """

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[dist.Work], Call]] = {}
        self._limit = KEPT
        self._lost: set[str] = set()

    def clear(self) -> None:
        self._entries.clear()
        self._lost.clear()

    def add(self, call: Call, reference: weakref.ref[dist.Work]) -> None:
        self._entries[id(call)] = reference, call
        if len(self._entries) > self._limit:
            self._find_lost()

    def close(self, call: Call) -> None:
        """Remove a message: the wait for it has ended."""
        self._entries.pop(id(call), None)

    def lost(self) -> set[str]:
        """Groups with messages whose work was dropped before a wait."""
        self._find_lost()
        return self._lost

    def _find_lost(self) -> None:
        for key, (reference, call) in list(self._entries.items()):
            if reference() is None:
                self._lost.add(call.group)
                self._entries.pop(key, None)
        self._limit = max(KEPT, 2 * len(self._entries))


class CallsByWork:
    """Maps a ``Work`` to its call; takes a third of the time of a weak dictionary."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[dist.Work], Call]] = {}
        self._limit = KEPT

    def put(self, work: dist.Work, call: Call) -> weakref.ref[dist.Work]:
        reference = weakref.ref(work)
        self._entries[id(work)] = reference, call
        if len(self._entries) > self._limit:
            self._drop_dead()
        return reference

    def get(self, work: dist.Work) -> Call | None:
        reference, call = self._entries.get(id(work), (None, None))
        # By now, another work may have the id of one that was freed.
        return call if reference is not None and reference() is work else None

    def _drop_dead(self) -> None:
        for key, (reference, _) in list(self._entries.items()):
            if reference() is None:
                self._entries.pop(key, None)
        self._limit = max(KEPT, 2 * len(self._entries))
