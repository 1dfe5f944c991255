"""What each rank notes for :mod:`pytest_ddp.extensions.portable.orders`."""

from __future__ import annotations

from typing import Any

from pytest_ddp.extensions.portable.events import Detector, IssuedOperation
from pytest_ddp.rank.operations.operation import Given
from pytest_ddp.system.stdlib import threading

_KEPT = 50_000
"""Operations at most; an order is judged as far as all ranks have noted it."""


class OrderLog(Detector):
    """The operations that NCCL would send, in the order in which threads issued them."""

    name = "orders"

    def __init__(self) -> None:
        self._match_keys: dict[tuple[Any, ...], int] = {}
        self._names: dict[tuple[str, str], int] = {}
        self._threads: dict[int, int] = {}
        self._log: list[tuple[int, ...]] = []
        self._places: dict[int, tuple[int, int]] = {}
        """Of each operation by its number: its thread, and which of that thread's it is."""
        self._counts: dict[int, int] = {}
        self._lock = threading.Lock()

    def issued(self, operation: IssuedOperation, given: Given) -> None:
        if operation.form.operation == "monitored_barrier":  # gloo's alone
            return
        if not operation.is_judged or (match_key := match_key_of(operation)) is None:
            return
        with self._lock:
            if len(self._log) >= _KEPT:
                return
            thread = self._threads.setdefault(operation.thread, len(self._threads))
            # What is called in one batch is launched together.
            place = self._counts[thread] = self._counts.get(thread, 0) + (operation.batch < 2)
            name = self._names.setdefault((operation.name, operation.place), len(self._names))
            where = self._match_keys.setdefault(match_key, len(self._match_keys))
            self._places[operation.number] = thread, place
            self._log.append((where, name, thread, place))

    def waited(self, operation: IssuedOperation) -> None:
        waiting = threading.get_ident()
        if operation.thread != waiting and operation.number in self._places:
            with self._lock:
                thread = self._threads.setdefault(waiting, len(self._threads))
                self._log.append((-1, thread, *self._places[operation.number]))

    def ended(self) -> Any:
        if len(self._match_keys) < 2:
            return None
        return {
            "match_keys": [list(match_key) for match_key in self._match_keys],
            "names": [list(name) for name in self._names],
            "log": self._log,
        }


def match_key_of(operation: IssuedOperation) -> tuple[Any, ...] | None:
    """What operations are matched by between ranks; its members come last.

    Those of a message are its two ends, sender first. None for a receive from any rank: which
    message it takes is not known.
    """
    group, kind = operation.group, operation.form.operation
    if operation.peer is None:
        return "collective", group.name, group.made, 0, group.members
    if operation.peer < 0:
        return None
    peer = group.members[operation.peer]
    ends = (group.own, peer) if kind == "send" else (peer, group.own)
    return "message", group.name, group.made, operation.tag, ends
