"""Calls of process groups as the journal keeps them."""

from __future__ import annotations

import weakref
from types import CodeType
from typing import NamedTuple, TypeAlias

import torch
import torch.distributed as dist

Piece: TypeAlias = tuple[tuple[int, torch.dtype], ...]
"""What one rank sends to another: elements and dtype of each tensor, several if coalesced."""

KEPT = 2048
"""Calls that are kept for an explanation; all of them count."""


class Site(NamedTuple):
    """A place in the user's code."""

    code: CodeType
    line: int

    def __str__(self) -> str:
        return f"{self.code.co_filename}:{self.line}"


class Call(NamedTuple):
    """One collective, send or receive that was asked for."""

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
    """Seconds that the wait for it may take, where its caller has said so."""
    sends: tuple[Piece, ...] = ()
    """What each member gets, in group order; one for all of them if they get the same. Empty for
    operations that are not made of pieces."""
    receives: tuple[Piece, ...] = ()
    """What is expected of each member, in the same way."""


class OpenMessages:
    """Sends and receives of a test for whose work nobody has waited.

    gloo gives up a message whose work is dropped before it is complete, and afterwards what is sent
    between the two ranks may go astray.
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
            self._look()

    def close(self, call: Call) -> None:
        """The wait for it has ended."""
        self._entries.pop(id(call), None)

    def lost(self) -> set[str]:
        """Groups with messages whose work is gone."""
        self._look()
        return self._lost

    def _look(self) -> None:
        for key, (reference, call) in list(self._entries.items()):
            if reference() is None:
                self._lost.add(call.group)
                self._entries.pop(key, None)
        self._limit = max(KEPT, 2 * len(self._entries))


class CallsByWork:
    """Which call a ``Work`` is the answer to; a weak dictionary, in a third of its time."""

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
        # The identity of a work that is gone may be that of another one by now.
        return call if reference is not None and reference() is work else None

    def _drop_dead(self) -> None:
        for key, (reference, _) in list(self._entries.items()):
            if reference() is None:
                self._entries.pop(key, None)
        self._limit = max(KEPT, 2 * len(self._entries))
