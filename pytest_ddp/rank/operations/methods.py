"""The wrappers of the methods of ``ProcessGroup``, ``Work`` and a ``Work``'s future.

They stand below torch's Python functions, so that neither these nor torch.compile notice them. They
do not see what C++ issues without Python (DDP's reducer).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import timedelta
from sys import _getframe
from typing import Any

import torch
import torch.distributed as dist

from pytest_ddp.rank.operations.operation import Given, Operation, new_named
from pytest_ddp.rank.operations.origins import called_by_user
from pytest_ddp.rank.operations.stream import Operations
from pytest_ddp.rank.operations.table import BY_METHOD, Form
from pytest_ddp.rank.operations.works import FutureOrigin
from pytest_ddp.system.stdlib import threading

_MONITORED = "monitored_barrier"
_COMPLETES = frozenset({"synchronize", "result", "is_completed"})
"""Methods of a ``Work``, beside ``wait``, that wait for it or return whether it is complete."""
_PASSES_ON = frozenset(
    {
        *("get_future", "get_future_result", "block_current_stream", "boxed"),
        *("exception", "is_success"),
    }
)
"""Methods of a ``Work`` that pass it on to where a wait is not seen."""

_group: Any = dist.ProcessGroup
_work: Any = dist.Work
_future: Any = torch.Future


def watch_python(operations: Operations) -> Callable[[], None]:
    """Announce what Python issues and waits for, until what is returned is called."""
    undo = contextlib.ExitStack()
    for method, form in BY_METHOD.items():
        original = getattr(_group, method, None)
        if original is not None:  # missing in an older or newer torch
            wrap = _monitoring if method == _MONITORED else _issuing
            _replace(undo, _group, method, wrap(operations, original, form, method))
    naming = _naming(operations, _group._set_group_name)
    _replace(undo, _group, "_set_group_name", naming)
    _replace(undo, _work, "wait", _waiting(operations, _work.wait))
    _replace(undo, _work, "get_future", _giving_future(operations, _work.get_future))
    _replace(undo, _future, "then", _chaining(operations, _future.then))
    _replace(undo, _future, "wait", _waiting_for_future(operations, _future.wait))
    return undo.close


def _replace(undo: contextlib.ExitStack, owner: Any, name: str, value: Any) -> None:
    original = vars(owner).get(name)
    setattr(owner, name, value)
    if original is None:  # inherited
        undo.callback(delattr, owner, name)
    else:
        undo.callback(setattr, owner, name, original)


def _issuing(operations: Operations, original: Any, form: Form, method: str) -> Callable[..., Any]:
    describe, put = operations.describer.of(form, method), operations.works.put

    # A frame of ours: a TransparentWrapper would not see the arguments. torch's Python functions,
    # which warn and log, are callers of it; below it is only C++.
    def issuing(group: dist.ProcessGroup, *args: Any, **kwargs: Any) -> Any:
        operation = describe(group, args, kwargs)
        if operations.is_watched and not operations.local.is_announcing:
            given = new_named(Given, (args, kwargs, {}))
            return operations.run(operation, given, original, (group, *args), kwargs)
        recorder = operations.recorder
        recorder.before(operation)
        try:
            work = original(group, *args, **kwargs)
        except BaseException as error:
            recorder.returned(operation, error)
            operation.process_group = None
            raise
        recorder.returned(operation, None)
        operation.process_group = None
        if work is not None:
            put(work, operation)
        return work

    return issuing


def _monitoring(
    operations: Operations, original: Any, form: Form, method: str
) -> Callable[..., Any]:
    """Wrap ``monitored_barrier``: gloo builds it from messages, and it returns when all have
    come."""
    describe = operations.describer.of(form, method)

    def monitoring(group: dist.ProcessGroup, *args: Any, **kwargs: Any) -> Any:
        operation = describe(group, args, kwargs)
        if operations.is_watched and not operations.local.is_announcing:
            operation.given = Given(args, kwargs, {})
            called = operations.announce(operation, operations.at_method)
        else:
            called = ()
        thread, local = threading.get_ident(), operations.local
        outer, local.operation = local.operation, operation
        operations.waiting[thread] = operation
        operations.recorder.waits(operation)

        def ended(error: BaseException | None) -> None:
            local.operation = outer
            operations.waiting.pop(thread, None)
            operations.recorder.waited(operation, error)
            operations.announce_return(operation, called, None, error)

        try:
            result = original(group, *args, **kwargs)
        except BaseException as error:
            ended(error)
            raise
        ended(None)
        return result

    return monitoring


def _naming(operations: Operations, original: Any) -> Callable[..., None]:
    def set_group_name(group: dist.ProcessGroup, name: str) -> None:
        operations.recorder.group_begins(name, called_by_user(_getframe(1)))
        original(group, name)
        for greet in operations.on_new_group:
            greet(group)

    return set_group_name


def _waiting(operations: Operations, original: Any) -> Callable[..., Any]:
    find, waiting, unknown = operations.works.get, operations.waiting, operations.unknown

    def wait(work: dist.Work, *args: Any, **kwargs: Any) -> Any:
        operation, thread = find(work), threading.get_ident()
        if operation is None:
            unknown[thread] = None
            try:
                return original(work, *args, **kwargs)
            finally:
                unknown.pop(thread, None)
        operation.limit = _limit(*args, **kwargs) if args or kwargs else None
        waiting[thread] = operation
        operations.recorder.waits(operation)
        try:
            result = original(work, *args, **kwargs)
        except BaseException as error:
            _end_wait(operations, operation, thread, error)
            raise
        _end_wait(operations, operation, thread, None)
        return result

    return wait


def _end_wait(
    operations: Operations, operation: Operation, thread: int, error: BaseException | None
) -> None:
    operations.waiting.pop(thread, None)
    operation.is_waited = True
    operations.recorder.waited(operation, error)
    if operations.subscriptions:
        operations.announce_end_of_wait(operation, error)


def _limit(timeout: Any = None) -> float | None:
    """The timeout given to ``wait`` in seconds; torch takes zero for no timeout."""
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else 0.0
    return seconds if seconds > 0 else None


def _giving_future(operations: Operations, original: Any) -> Callable[..., Any]:
    def get_future(work: dist.Work) -> Any:
        future = original(work)
        if (operation := operations.works.get(work)) is not None:
            operations.futures[future] = FutureOrigin(operation, is_derived=False)
        return future

    return get_future


def _chaining(operations: Operations, original: Any) -> Callable[..., Any]:
    def then(future: Any, callback: Any) -> Any:
        derived = original(future, callback)
        if (origin := operations.futures.get(future)) is not None:
            operations.futures[derived] = origin._replace(is_derived=True)
        return derived

    return then


def _waiting_for_future(operations: Operations, original: Any) -> Callable[..., Any]:
    def wait(future: Any) -> Any:
        origin = operations.futures.get(future)
        if origin is None:
            return original(future)
        operation, thread = origin.operation, threading.get_ident()
        operations.waiting[thread] = operation
        operations.recorder.waits(operation)
        try:
            result = original(future)
        except BaseException as error:
            # A callback of the user's may have raised: that says nothing about the operation.
            _end_wait(operations, operation, thread, None if origin.is_derived else error)
            raise
        _end_wait(operations, operation, thread, None)
        return result

    return wait


def watch_uses(operations: Operations) -> Callable[[], None]:
    """Announce other uses of a ``Work`` than ``wait``, until what is returned is called."""
    undo = contextlib.ExitStack()
    for method in _COMPLETES | _PASSES_ON:
        original = getattr(_work, method, None)
        if original is not None:  # missing in an older or newer torch
            _replace(undo, _work, method, _using(operations, original, method))
    return undo.close


def _using(operations: Operations, original: Any, method: str) -> Callable[..., Any]:
    def used(work: dist.Work, *args: Any, **kwargs: Any) -> Any:
        operation = operations.works.get(work)
        if operation is None:
            return original(work, *args, **kwargs)
        operation.is_waited |= method != "is_completed"
        if method in _PASSES_ON:
            operations.announce_passed_on(operation)
        result = original(work, *args, **kwargs)
        if method in _COMPLETES and (result or method != "is_completed"):
            operation.is_waited = True
            operations.announce_end_of_wait(operation, None)
        return result

    return used
