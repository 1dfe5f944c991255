"""What a thread of a rank waits for."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from types import FrameType
from typing import NamedTuple

from pytest_ddp.rank.operations.operation import Issuer, Operation
from pytest_ddp.rank.operations.origins import is_of_stream


class WaitKind(enum.Enum):
    """The kind of a wait."""

    COLLECTIVE = "collective"
    RECEIVE = "receive"
    SEND = "send"
    WORK = "work"
    """For a ``Work`` whose operation is not known."""
    STORE = "store"
    """For a store of a rendezvous, or for the ranks that come to it."""
    FIXTURE = "ddp"
    """For other ranks, in an operation of the ``ddp`` fixture."""
    HELD = "held"
    """For a subscriber that holds the thread on purpose."""
    UNKNOWN = "unknown"
    """None of these, or no wait at all: it cannot be told from computing."""


class Wait(NamedTuple):
    """What a thread waits for."""

    kind: WaitKind
    operation: Operation | None = None
    words: str = ""
    """What a subscriber says of a wait of its own, or the function that waits for a store."""


_MESSAGES = {"send": WaitKind.SEND, "recv": WaitKind.RECEIVE}
_STORE_FILES = ("/distributed/rendezvous.py", "/elastic/utils/store.py")
_STORE_FUNCTIONS = frozenset({"_store_based_barrier", "_create_c10d_store", "store_based_barrier"})


def wait_for(operation: Operation) -> Wait:
    """The wait for an operation."""
    if operation.issuer is Issuer.FIXTURE:
        return Wait(WaitKind.FIXTURE, operation)
    return Wait(_MESSAGES.get(operation.name, WaitKind.COLLECTIVE), operation)


def wait_of(stack: Sequence[FrameType]) -> Wait:
    """The wait of a thread in which no operation is known, by its stack."""
    frame = next((one for one in stack if not is_of_stream(one)), None)
    if frame is not None:
        function, file = frame.f_code.co_name, frame.f_code.co_filename
        if function in _STORE_FUNCTIONS or file.endswith(_STORE_FILES):
            return Wait(WaitKind.STORE, words=function)
    return Wait(WaitKind.UNKNOWN)
