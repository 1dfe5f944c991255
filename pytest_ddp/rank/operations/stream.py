"""The stream of a process's operations: who subscribes is called at each of them.

The order of calls, from the user's code to torch and back::

    before    subscribers, the latest first; the journal, then the trace
    returned  the journal, then the trace; subscribers, the earliest first
    waited    the same

So a subscriber that holds a thread or refuses an operation does so before it is counted, and one
that subscribes later is further out, as a wrapper of a wrapper would be. Only the arguments of an
operator come later, when it is called: after the journal.
"""

from __future__ import annotations

import contextlib
import enum
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch.distributed as dist

from pytest_ddp.rank.operations.describing import Describer
from pytest_ddp.rank.operations.kernel_waits import kernels_number
from pytest_ddp.rank.operations.operation import Description, Given, Issuer, Operation
from pytest_ddp.rank.operations.origins import stack_of
from pytest_ddp.rank.operations.table import Form
from pytest_ddp.rank.operations.wait import Wait, WaitKind, wait_for, wait_of
from pytest_ddp.rank.operations.works import FutureOrigin, OperationsByWork
from pytest_ddp.system.frames import current_frames
from pytest_ddp.system.stdlib import threading, traceback


class Needs(enum.Flag):
    """What a subscriber needs that costs; it is there only while one needs it."""

    NOTHING = 0
    CPP = enum.auto()
    """Operations that C++ issues by itself, as DDP does for gradients: a kernel for each operator,
    which takes about 10 microseconds of each operation."""
    ARGUMENTS = enum.auto()
    """``given`` has the operator's arguments by torch's names. By the same kernels: ``before`` is
    called when the operator is, and not for a method that calls none."""
    USES = enum.auto()
    """``passed_on`` and ``dropped``, and ``waited`` also for other methods of a ``Work`` than
    ``wait``: a wrapper of each, and a callback for each ``Work``."""


class Subscriber(Protocol):
    """The methods of a subscriber, each optional.

    They are called on the thread that does what they are about, several at the same time. What one
    raises is its own mistake: it is reported with its name, and the user's call goes on.
    """

    def before(self, operation: Operation) -> BaseException | None:
        """An operation is about to be issued.

        It may hold the thread (within ``holding``), or end the process.

        Returns:
            what the user's call is to raise in place of the operation; None for nothing.
        """

    def returned(self, operation: Operation, work: Any, error: BaseException | None) -> None:
        """The issue has returned, once for each ``before``: with a ``Work`` for Python, with None,
        or with what it raises. What an asynchronous operation has begun is not complete."""

    def waited(self, operation: Operation, error: BaseException | None) -> None:
        """A wait for an operation's ``Work`` has ended."""

    def passed_on(self, operation: Operation) -> None:
        """An operation's ``Work`` was given to a Future or to C++, where not every
        wait for it is seen.
        """

    def dropped(self, operation: Operation) -> None:
        """An operation's ``Work`` is gone, and nothing has waited for it."""


class Recorder:
    """What records each operation, next to torch; this base class records nothing.

    Nobody guards it, and nothing is looped over for it: its mistakes are ours.
    """

    def before(self, operation: Operation) -> None:
        """An operation is issued now, by Python or by a functional collective."""

    def returned(self, operation: Operation, error: BaseException | None) -> None:
        """The call that issued an operation has returned."""

    def waits(self, operation: Operation) -> None:
        """The calling thread waits for an operation's ``Work``, or for all of one that has no
        ``Work``."""

    def waited(self, operation: Operation, error: BaseException | None) -> None:
        """The calling thread's wait for an operation has ended."""

    def group_begins(self, name: str, by_user: bool) -> None:
        """A group gets its name, which an earlier one may have had."""


class _Subscription(NamedTuple):
    name: str
    needs: Needs
    before: Callable[[Operation], BaseException | None] | None
    returned: Callable[[Operation, Any, BaseException | None], None] | None
    waited: Callable[[Operation, BaseException | None], None] | None
    passed_on: Callable[[Operation], None] | None
    dropped: Callable[[Operation], None] | None


Subscriptions = tuple[_Subscription, ...]
"""The latest first."""


class _Local(threading.local):
    operation: Operation | None = None
    """What this thread issues, in the call of a method or of a functional collective."""
    is_announcing = False
    """Whether this thread calls a subscriber: what that issues is announced to nobody."""


class Operations:
    """The stream of this process's operations."""

    def __init__(self, provisions: Mapping[Needs, Provision] | None = None) -> None:
        """
        Args:
            provisions: provide what subscribers need; each returns what ends that. That of
                ``Needs.NOTHING`` is there while somebody records or subscribes.
        """
        self.describer = Describer()
        self.works = OperationsByWork()
        self.futures: weakref.WeakKeyDictionary[Any, FutureOrigin] = weakref.WeakKeyDictionary()
        self.recorder = Recorder()
        self.is_watched = False
        """Whether operations go through :meth:`run`: somebody has subscribed, or the recorder takes
        arguments."""
        self._takes_arguments = False
        self.on_new_group: list[Callable[[dist.ProcessGroup], None]] = []
        """Called with each group that is made."""
        self.report: Callable[[str], None] = _to_stderr
        """Reports a mistake of a subscriber."""
        self.waiting: dict[int, Operation] = {}
        """The operation that each thread waits for right now, by thread identifier."""
        self.unknown: dict[int, None] = {}
        """Threads that wait for a ``Work`` of no known operation."""
        self.subscriptions: Subscriptions = ()
        self.at_method: Subscriptions = ()
        """Subscribers called at a method of ``ProcessGroup`` or a functional collective."""
        self.at_operator: Subscriptions = ()
        """Subscribers called when a method or a functional collective calls an operator."""
        self.at_cpp: Subscriptions = ()
        """Subscribers called at an operator that C++ calls."""
        self.local = _Local()
        self._exchanges: dict[int, Operation] = {}
        """The operation of the ``ddp`` fixture that each thread waits in."""
        self._held: dict[int, str] = {}
        self._stated: dict[int, Wait] = {}
        self._provisions = {} if provisions is None else dict(provisions)
        self._provided: dict[Needs, Callable[[], None]] = {}
        self._announces_uses = False
        self._with_event: dict[str, Subscriptions] = dict.fromkeys(_EVENTS, ())
        """Subscribers that are called at an event after the issue, the earliest first."""
        self._lock = threading.RLock()

    # ------------------------------------------------------------------ for subscribers

    def subscribe(self, subscriber: object, needs: Needs = Needs.NOTHING) -> Callable[[], None]:
        """Call the methods of ``subscriber`` from now on.

        Args:
            subscriber: has any of the methods of :class:`Subscriber`.
            needs: what it needs beside operations of Python and waits for them.

        Returns:
            what ends it; of an operation that has begun it still gets ``returned``.
        """
        kind, methods = type(subscriber), ("before", "returned", "waited", "passed_on", "dropped")
        found = [getattr(subscriber, method, None) for method in methods]
        one = _Subscription(f"{kind.__module__}.{kind.__qualname__}", needs, *found)
        self._set(lambda those: (one, *those))
        return partial(self._set, lambda those: tuple(other for other in those if other is not one))

    def waits(self) -> Mapping[int, Wait]:
        """What each thread of Python waits for, by thread identifier.

        Any thread may ask. It takes no lock, and the others go on in the meantime.
        """
        found = {}
        for thread in current_frames():
            if (words := self._held.get(thread)) is not None:
                found[thread] = Wait(WaitKind.HELD, words=words)
            elif (operation := self._waits_in(thread)) is not None:
                found[thread] = wait_for(operation)
            elif thread in self.unknown:
                found[thread] = Wait(WaitKind.WORK)
            elif (stated := self._stated.get(thread)) is not None:
                found[thread] = stated
            else:
                found[thread] = wait_of(stack_of(thread), _kernels_number(thread))
        return found

    def _waits_in(self, thread: int) -> Operation | None:
        return self.waiting.get(thread) or self._exchanges.get(thread)

    @contextlib.contextmanager
    def waiting_for(self, wait: Wait) -> Iterator[None]:
        """State that this thread waits in the block, in a call that the stream does not know.

        Args:
            wait: for what.
        """
        thread = threading.get_ident()
        self._stated[thread] = wait
        try:
            yield
        finally:
            self._stated.pop(thread, None)

    @contextlib.contextmanager
    def holding(self, words: str) -> Iterator[None]:
        """Hold this thread in the block on purpose: it waits for none of its peers.

        Args:
            words: why, for texts about the rank: ``late for its second collective``.
        """
        thread = threading.get_ident()
        outer = self._held.get(thread)
        self._held[thread] = words
        try:
            yield
        finally:
            if outer is None:
                self._held.pop(thread, None)
            else:
                self._held[thread] = outer

    # ------------------------------------------------------------------ for the core

    def record(self, recorder: Recorder, *, with_arguments: bool = False) -> None:
        """Have operations recorded, in place of the recorder before.

        Args:
            recorder: it.
            with_arguments: whether ``given`` is there for it.
        """
        self.recorder, self._takes_arguments = recorder, with_arguments
        self._set(lambda those: those)

    def begin(self) -> None:
        """Begin a new test."""
        self.describer.forget()
        self.works.begin()

    def held(self, thread: int) -> str:
        """Why a subscriber holds a thread; empty if none does."""
        return self._held.get(thread, "")

    @contextlib.contextmanager
    def exchange(self, name: str) -> Iterator[None]:
        """The block is an operation of the ``ddp`` fixture.

        Raises:
            BaseException: what a subscriber has returned for the user's call.
        """
        form = Form(f"ddp.{name}", f"ddp.{name}", (), ())
        operation = Operation(None, "", Description(form, name), Issuer.FIXTURE)
        is_own = self.local.is_announcing  # a subscriber's
        called = () if is_own else self.announce(operation, self.subscriptions)
        thread = threading.get_ident()
        self._exchanges[thread] = operation
        try:
            yield
        except BaseException as error:
            self._exchanges.pop(thread, None)
            self.announce_return(operation, called, None, error)
            raise
        self._exchanges.pop(thread, None)
        self.announce_return(operation, called, None, None)

    def run(
        self,
        operation: Operation,
        given: Given,
        call: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Issue an operation of Python or of a functional collective while it is watched.

        Args:
            operation: it.
            given: the arguments of the method.
            call: torch's own method or operator.
            args: its arguments.
            kwargs: those by name.

        Raises:
            BaseException: what a subscriber has returned for the user's call, or torch raises.
        """
        local, recorder = self.local, self.recorder
        operation.given = given
        called = self.at_method and self.announce(operation, self.at_method)
        recorder.before(operation)
        outer, local.operation = local.operation, operation
        try:
            result = call(*args, **kwargs)
        except BaseException as error:
            local.operation = outer
            recorder.returned(operation, error)
            self.announce_return(operation, called, None, error)
            raise
        local.operation = outer
        recorder.returned(operation, None)
        work = None
        if operation.issuer is _PYTHON and result is not None:
            work = result
            # The waits of a class in Python are not seen.
            if self._announces_uses and type(work).wait is dist.Work.wait:
                self.works.put(work, operation, partial(self._announce_dropped, operation))
            else:
                self.works.put(work, operation)
        self.announce_return(operation, called, work, None)
        return result

    def announce(self, operation: Operation, whom: Subscriptions) -> Subscriptions:
        """Call ``before``; returns who gets ``returned``.

        Raises:
            BaseException: what a subscriber has returned for the user's call.
        """
        failure: BaseException | None = None
        place, outer = 0, self._begin_announcing()
        try:
            for place, one in enumerate(whom, 1):  # noqa: B007
                if one.before is not None:
                    try:
                        failure = one.before(operation)
                    except Exception:
                        self._report(one, "before")
                    if isinstance(failure, BaseException):
                        break
        except BaseException as error:  # Ctrl-C, while it holds the thread
            failure = error
        finally:
            self._end_announcing(outer)
        if isinstance(failure, BaseException):
            self.announce_return(operation, whom[:place], None, failure)
            try:
                raise failure
            finally:
                del failure  # its traceback has this frame
        return whom

    def announce_return(
        self,
        operation: Operation,
        whom: Subscriptions,
        work: Any,
        error: BaseException | None,
    ) -> None:
        """Call ``returned``, and drop what the operation has for the time of its issue."""
        if whom or operation.callees:
            outer = self._begin_announcing()
            try:
                # Those of the operator are nearer to torch.
                for one in (whom + operation.callees)[::-1]:
                    if one.returned is not None:
                        try:
                            one.returned(operation, work, error)
                        except Exception:
                            self._report(one, "returned")
            finally:
                self._end_announcing(outer)
        operation.process_group = operation.given = None
        operation.callees = ()

    def announce_end_of_wait(self, operation: Operation, error: BaseException | None) -> None:
        """A wait for an operation has ended on this thread."""
        self._announce_event("waited", operation, error)

    def announce_passed_on(self, operation: Operation) -> None:
        """A handle was given to where not every wait for it is seen."""
        self._announce_event("passed_on", operation)

    # ------------------------------------------------------------------ inside

    def _announce_dropped(self, operation: Operation, _: object) -> None:
        if not operation.is_waited:
            self._announce_event("dropped", operation)

    def _announce_event(self, event: str, *arguments: Any) -> None:
        whom = self._with_event[event]
        if not whom or self.local.is_announcing:
            return
        outer = self._begin_announcing()
        try:
            for one in whom:
                try:
                    getattr(one, event)(*arguments)
                except Exception:
                    self._report(one, event)
        finally:
            self._end_announcing(outer)

    def _begin_announcing(self) -> Any:
        """Announce nothing on this thread from now on, and compile nothing.

        In a compiled region the compiler looks at each frame of Python that it has not traced.
        """
        self.local.is_announcing = True
        compiler: Any = sys.modules.get(_COMPILER)
        return compiler and compiler.set_eval_frame(None)

    def _end_announcing(self, outer: Any) -> None:
        if outer is not None:  # as in compiled regions alone
            sys.modules[_COMPILER].set_eval_frame(outer)
        self.local.is_announcing = False

    def _report(self, one: _Subscription, event: str) -> None:
        text = traceback.format_exc().rstrip()
        with contextlib.suppress(Exception):
            self.report(f"{one.name} has raised in {event}:\n{text}")

    def _set(self, change: Callable[[Subscriptions], Subscriptions]) -> None:
        with self._lock:
            those = change(self.subscriptions)
            needed = Needs.NOTHING
            for one in those:
                needed |= one.needs
            is_used = bool(those) or type(self.recorder) is not Recorder
            wanted = [need for need in self._provisions if (need & needed if need else is_used)]
            # Before the first call of a subscriber, and after the last.
            for need in [
                need for need in self._provisions if need in wanted - self._provided.keys()
            ]:
                self._provided[need] = self._provisions[need](self)
            self.at_method = tuple(one for one in those if Needs.ARGUMENTS not in one.needs)
            self.at_operator = tuple(one for one in those if Needs.ARGUMENTS in one.needs)
            self.at_cpp = tuple(one for one in those if Needs.CPP in one.needs)
            self.subscriptions = those
            self.is_watched = self._takes_arguments or bool(those)
            self._announces_uses = Needs.USES in wanted
            self._with_event = {
                event: tuple(
                    one
                    for one in reversed(those)
                    if getattr(one, event) is not None and need in one.needs
                )
                for event, need in _EVENTS.items()
            }
            for need in [need for need in reversed(self._provided) if need not in wanted]:
                self._provided.pop(need)()


def _kernels_number(thread: int) -> int | None:
    """The kernel's number of a thread of Python; None for the one that asks, which waits for
    nothing."""
    if thread == threading.get_ident():
        return None
    # Not by enumerate(), which takes a lock that the thread may have.
    known: Any = threading._active.get(thread)  # type: ignore[attr-defined]
    return None if known is None else kernels_number(known)


_EVENTS = {"waited": Needs.NOTHING, "passed_on": Needs.USES, "dropped": Needs.USES}
"""What a subscriber needs for each event after the issue."""
Provision = Callable[[Operations], Callable[[], None]]

_PYTHON = Issuer.PYTHON
_COMPILER = "torch._C._dynamo.eval_frame"


def _to_stderr(text: str) -> None:
    print(f"pytest-ddp: {text}", file=sys.stderr)
