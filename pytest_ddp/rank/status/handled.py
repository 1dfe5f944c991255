"""The exception that a rank handles while it waits: in its main thread, or where that waits for
one.

Where the handler of an exception communicates and hangs, the exception is the cause. The handler
may run in a pool's thread, or be a coroutine that awaits such a thread.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from sys import _current_exceptions
from types import FrameType
from typing import Any

from pytest_ddp.protocol.rank_status import CodeLine, Handled, Raised
from pytest_ddp.rank.operations.origins import raised_at
from pytest_ddp.rank.status.phase_stack import kind_of, message_of
from pytest_ddp.system.stdlib import gc, inspect

_DEEPEST = 100
"""Coroutines that await one another that are looked at."""
_RUNS_LOOP = ("run_forever", "/asyncio/base_events.py")


def handled_in(thread: int) -> Handled | None:
    """What a thread handles now."""
    found: Any = _current_exceptions().get(thread)
    # Python 3.11 has a tuple as of sys.exc_info() here.
    return _handled(found[1] if isinstance(found, tuple) else found)


def handled_beside(threads: Iterable[int], stack: Sequence[FrameType]) -> Handled | None:
    """The exception that is handled by the threads for which a sleeping thread waits.

    Args:
        threads: the threads that wait in operations.
        stack: the sleeping thread's stack, innermost frame first.
    """
    in_threads = map(handled_in, threads)
    in_coroutines = (_handled(error) for error in _of_coroutines(stack))
    return next(filter(None, (*in_threads, *in_coroutines)), None)


def _handled(error: BaseException | None) -> Handled | None:
    # A generator that is being closed handles no error.
    if error is None or isinstance(error, GeneratorExit):
        return None
    chain = list(_chain(error))
    if not chain:
        return None
    own = chain[0]
    return Handled(own.kind, own.message, own.place, chain[-1] if len(chain) > 1 else None)


def _chain(error: BaseException) -> Iterator[Raised]:
    """An exception and those before it in its chain, as far as user code raised them."""
    found: BaseException | None = error
    seen: set[int] = set()  # a user may have made a cycle
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        # A group is a container: except* even wraps an exception that was raised without one.
        if isinstance(found, BaseExceptionGroup):
            found = found.exceptions[0]
            continue
        if (line := raised_at(found.__traceback__)) is not None:
            code, number = line
            place = CodeLine(code.co_filename, number, code.co_name)
            yield Raised(kind_of(found), message_of(found), place)
        found = found.__cause__ or (None if found.__suppress_context__ else found.__context__)


# ------------------------------------------------------------------ coroutines


def _of_coroutines(stack: Sequence[FrameType]) -> Iterator[BaseException]:
    """What coroutines handle that wait for a thread, in the event loop of this stack."""
    asyncio: Any = sys.modules.get("asyncio")
    loop = next((f.f_locals.get("self") for f in stack if _runs_loop(f)), None)
    if asyncio is None or loop is None:
        return
    for task in asyncio.all_tasks(loop):
        if _waits_for_thread(getattr(task, "_fut_waiter", None)):
            # The innermost one is the most recent.
            yield from reversed([*_suspended_in_handlers(task.get_coro())])


def _runs_loop(frame: FrameType) -> bool:
    function, file = _RUNS_LOOP
    return frame.f_code.co_name == function and frame.f_code.co_filename.endswith(file)


def _waits_for_thread(future: Any) -> bool:
    """Whether a future is that of ``asyncio.to_thread``, or of an executor's."""
    waiters = getattr(future, "_callbacks", None) or ()
    names = (getattr(call, "__qualname__", "") for call, _ in waiters)
    return any(name.startswith("_chain_future.") for name in names)


def _suspended_in_handlers(coroutine: Any) -> Iterator[BaseException]:
    """The exceptions that suspended coroutines handle, outermost first.

    CPython keeps them apart from the running thread's, and lists the one that a coroutine handles
    last of what it refers to: behind its locals, and what it awaits.
    """
    for _ in range(_DEEPEST):
        if not inspect.iscoroutine(coroutine):
            return
        *_, last = gc.get_referents(coroutine) or [None]
        if isinstance(last, BaseException):
            yield last
        coroutine = coroutine.cr_await
