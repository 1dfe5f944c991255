"""What a thread of a rank waits for."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from types import FrameType
from typing import NamedTuple

from pytest_ddp.rank.operations.kernel_waits import BlockedCall, Call, blocked
from pytest_ddp.rank.operations.operation import Issuer, Operation
from pytest_ddp.rank.operations.origins import is_of_stream, is_of_torch


class WaitKind(enum.Enum):
    """The kind of a wait."""

    COLLECTIVE = "collective"
    RECEIVE = "receive"
    SEND = "send"
    WORK = "work"
    """A wait for a ``Work`` whose operation is not known."""
    STORE = "store"
    """A wait for a store of a rendezvous, or for the ranks that come to it."""
    FIXTURE = "ddp"
    """A wait for other ranks, in an operation of the ``ddp`` fixture."""
    FLOCK = "flock"
    """A wait for the lock of a file."""
    SLEEP = "sleep"
    """A wait for a time."""
    POLL = "poll"
    """A wait for a descriptor: a socket, a pipe, several by ``select``."""
    QUEUE = "queue"
    """A wait for an entry of a ``queue``, or for room in one."""
    LOCK = "lock"
    """A wait for a lock, condition, event or future of the process."""
    THREAD = "thread"
    """A wait for the end of a thread."""
    SUBPROCESS = "subprocess"
    """A wait for the end or the output of a process."""
    HELD = "held"
    """A wait for a subscriber that holds the thread on purpose."""
    UNKNOWN = "unknown"
    """None of the other kinds, or no wait at all: such a wait looks like computing."""


class Wait(NamedTuple):
    """What a thread waits for."""

    kind: WaitKind
    operation: Operation | None = None
    words: str = ""
    """A subscriber's words for a wait of its own, or the function that waits."""
    is_timed: bool = False
    """Whether the call that waits has a limit, after which it returns. Of waits that only the
    kernel shows; a collective's limit is its operation's."""


_MESSAGES = {"send": WaitKind.SEND, "recv": WaitKind.RECEIVE}
_STORE_FILES = ("/distributed/rendezvous.py", "/elastic/utils/store.py")
_STORE_FUNCTIONS = frozenset({"_store_based_barrier", "_create_c10d_store", "store_based_barrier"})


def wait_for(operation: Operation) -> Wait:
    """The wait for an operation."""
    if operation.issuer is Issuer.FIXTURE:
        return Wait(WaitKind.FIXTURE, operation)
    return Wait(_MESSAGES.get(operation.name, WaitKind.COLLECTIVE), operation)


_LOCKING = ("/threading.py", "/concurrent/futures/_base.py", "/multiprocessing/synchronize.py")
_PROCESSES = ("/subprocess.py", "/multiprocessing/popen_fork.py", "/multiprocessing/popen_spawn")
_JOINS = frozenset({"join", "_wait_for_tstate_lock", "_join_thread"})
_BY_CALL = {
    Call.FLOCK: WaitKind.FLOCK,
    Call.SLEEP: WaitKind.SLEEP,
    Call.DESCRIPTOR: WaitKind.POLL,
    Call.CHILD: WaitKind.SUBPROCESS,
}


def wait_of(stack: Sequence[FrameType], thread: int | None = None) -> Wait:
    """The wait of a thread in which no operation is known.

    Args:
        stack: its frames, innermost first.
        thread: what the kernel calls it; None if that is not known.
    """
    below = [one for one in stack if not is_of_stream(one)]
    if not below:
        return Wait(WaitKind.UNKNOWN)
    function, file = below[0].f_code.co_name, below[0].f_code.co_filename
    if function in _STORE_FUNCTIONS or file.endswith(_STORE_FILES):
        return Wait(WaitKind.STORE, words=function)
    found = None if thread is None else blocked(thread)
    if found is None:
        return Wait(WaitKind.UNKNOWN)
    kind = _kind(found, below)
    if kind is WaitKind.UNKNOWN:
        return Wait(kind)
    return Wait(kind, words=function, is_timed=found.is_timed)


def _kind(found: BlockedCall, stack: Sequence[FrameType]) -> WaitKind:
    files = [one.f_code.co_filename for one in stack]
    if any(file.endswith(_PROCESSES) for file in files[:3]):
        return WaitKind.SUBPROCESS
    if found.call is not Call.LOCK:
        return _BY_CALL[found.call]
    if files[0].endswith(_LOCKING):
        outside = next((file for file in files if not file.endswith("/threading.py")), "")
        if outside.endswith("/queue.py"):
            return WaitKind.QUEUE
        return WaitKind.THREAD if stack[0].f_code.co_name in _JOINS else WaitKind.LOCK
    if is_of_torch(stack[0]):
        return WaitKind.WORK
    # With a limit it may also be the interpreter's lock, for which a computing thread waits.
    return WaitKind.UNKNOWN if found.is_timed else WaitKind.LOCK
