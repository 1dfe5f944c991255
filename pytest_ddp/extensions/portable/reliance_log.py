"""What each rank notes for :mod:`pytest_ddp.extensions.portable.reliance`."""

from __future__ import annotations

from typing import Any

from pytest_ddp.extensions.portable.events import Detector, IssuedOperation
from pytest_ddp.extensions.portable.order_log import match_key_of
from pytest_ddp.rank.operations.operation import Given
from pytest_ddp.system.stdlib import threading

_KEPT = 50_000
"""Operations at most; of a rank with more, nothing is judged."""


class WaitLog(Detector):
    """The operations that NCCL would send, and the waits for them, in the order of each thread."""

    name = "waits"

    def __init__(self) -> None:
        self._operations: list[tuple[Any, ...]] = []
        self._numbers: dict[int, int] = {}
        """Of each operation by its number: which of this list it is."""
        self._log: list[tuple[int, int, bool]] = []
        self._lock = threading.Lock()

    def issued(self, operation: IssuedOperation, given: Given) -> None:
        if operation.form.operation == "monitored_barrier" or not operation.is_judged:
            return
        key = match_key_of(operation)
        if key is None or len(self._operations) > _KEPT:
            return
        with self._lock:
            self._numbers[operation.number] = len(self._operations)
            self._log.append((operation.thread, len(self._operations), False))
            self._operations.append((*key, operation.name, operation.place))

    def waited(self, operation: IssuedOperation) -> None:
        with self._lock:
            number = self._numbers.get(operation.number)
            if number is not None:
                self._log.append((threading.get_ident(), number, True))

    def ended(self) -> Any:
        if not 0 < len(self._operations) <= _KEPT:
            return None
        return {"operations": self._operations, "log": self._log}
