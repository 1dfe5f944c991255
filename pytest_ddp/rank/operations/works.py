"""The operations that belong to the handles that torch has returned for them."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from pytest_ddp.rank.operations.operation import KEPT, Operation


class FutureOrigin(NamedTuple):
    """What a future needs to complete."""

    operation: Operation
    is_derived: bool
    """Whether the future also needs a callback of the user's (``then``)."""


class OperationsByWork:
    """Maps a ``Work`` to its operation; takes a third of the time of a weak dictionary.

    It also finds messages whose ``Work`` was dropped before a wait: gloo gives up such a message
    unless it is complete, and later messages between the two ranks may then be matched wrongly.
    """

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[Any], Operation]] = {}
        self._limit = KEPT
        self._lost: list[Operation] = []

    def put(
        self, work: Any, operation: Operation, gone: Callable[[Any], None] | None = None
    ) -> None:
        """Note that torch has returned ``work``; call ``gone`` when that is freed."""
        key, entries = id(work), self._entries
        if (old := entries.get(key)) is not None:
            self._note_end(old[1])
        entries[key] = weakref.ref(work, gone), operation
        if len(entries) > self._limit:
            self._drop_dead()

    def get(self, work: Any) -> Operation | None:
        """The operation of a handle; None where torch has returned it for none."""
        reference, operation = self._entries.get(id(work), (None, None))
        # By now, another work may have the id of one that was freed.
        return operation if reference is not None and reference() is work else None

    def lost(self) -> list[Operation]:
        """Messages whose work was dropped before a wait, since the last :meth:`begin`."""
        self._drop_dead()
        return [*self._lost]

    def begin(self) -> None:
        """Begin a new test: what it finds to be lost is not that of the test before."""
        self._drop_dead()
        for _, operation in list(self._entries.values()):
            operation.is_waited |= operation.tag is not None
        self._lost.clear()

    def _note_end(self, operation: Operation) -> None:
        if not operation.is_waited and operation.tag is not None:
            self._lost.append(operation)

    def _drop_dead(self) -> None:
        for key, entry in list(self._entries.items()):
            # Another thread may be faster.
            if entry[0]() is None and self._entries.pop(key, None) is entry:
                self._note_end(entry[1])
        self._limit = max(KEPT, 2 * len(self._entries))
