"""The operations that belong to the handles that torch has returned for them."""

from __future__ import annotations

import weakref

import torch.distributed as dist

from pytest_ddp.rank.operations.operation import KEPT, Operation


class OpenMessages:
    """Sends and receives of a test that have not been waited for.

    gloo gives up a message whose work is dropped before it is complete, and later messages between
    the two ranks may then be matched wrongly.
    """

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[dist.Work], Operation]] = {}
        self._limit = KEPT
        self._lost: list[Operation] = []

    def clear(self) -> None:
        self._entries.clear()
        self._lost.clear()

    def add(self, operation: Operation, reference: weakref.ref[dist.Work]) -> None:
        self._entries[id(operation)] = reference, operation
        if len(self._entries) > self._limit:
            self._find_lost()

    def close(self, operation: Operation) -> None:
        """Remove a message: the wait for it has ended."""
        self._entries.pop(id(operation), None)

    def lost(self) -> list[Operation]:
        """Messages whose work was dropped before a wait."""
        self._find_lost()
        return [*self._lost]

    def _find_lost(self) -> None:
        for key, (reference, operation) in list(self._entries.items()):
            # Another thread may be faster.
            if reference() is None and self._entries.pop(key, None) is not None:
                self._lost.append(operation)
        self._limit = max(KEPT, 2 * len(self._entries))


class OperationsByWork:
    """Maps a ``Work`` to its operation; takes a third of the time of a weak dictionary."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[dist.Work], Operation]] = {}
        self._limit = KEPT

    def put(self, work: dist.Work, operation: Operation) -> weakref.ref[dist.Work]:
        reference = weakref.ref(work)
        self._entries[id(work)] = reference, operation
        if len(self._entries) > self._limit:
            self._drop_dead()
        return reference

    def get(self, work: dist.Work) -> Operation | None:
        reference, call = self._entries.get(id(work), (None, None))
        # By now, another work may have the id of one that was freed.
        return call if reference is not None and reference() is work else None

    def _drop_dead(self) -> None:
        for key, (reference, _) in list(self._entries.items()):
            if reference() is None:
                self._entries.pop(key, None)
        self._limit = max(KEPT, 2 * len(self._entries))
