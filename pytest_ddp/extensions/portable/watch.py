"""The events of a test in a rank: operators from the observer, handles from torch's Python.

A kernel of the observer gets another object for a ``Work`` than Python code does. So the methods of
``ProcessGroup`` and ``Work`` are wrapped, on top of the journal's wrappers, from the begin of a
watched test to its end.
"""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Callable, Iterable
from sys import _getframe
from types import FrameType
from typing import Any

import torch.distributed as dist
from torch._C import _distributed_c10d
from torch.distributed import distributed_c10d

from pytest_ddp.extensions.comms import stack
from pytest_ddp.extensions.comms.block import described
from pytest_ddp.extensions.comms.observer import OperatorCall, observe
from pytest_ddp.extensions.portable.events import Detector, Given, Group, Handle, IssuedOperation
from pytest_ddp.extensions.portable.options import Production
from pytest_ddp.rank.operations.origins import called_by_user
from pytest_ddp.rank.operations.table import BY_METHOD
from pytest_ddp.rank.status.landmarks import TransparentWrapper
from pytest_ddp.rank.status.uncompiled import hide_own_frames_now
from pytest_ddp.system.stdlib import threading

_COMPLETES = frozenset({"wait", "synchronize", "result"})
_USES = _COMPLETES | {
    *("get_future", "get_future_result", "block_current_stream", "boxed"),
    *("exception", "is_success", "is_completed"),
}
"""Methods of a ``Work`` that wait for it, or that pass it on to where a wait is not seen."""
_ON_HOST = frozenset({"barrier"})
"""Operations without a tensor, which torch sends by the CPU's backend where there is one."""
_MAKER = "_new_process_group_helper"
_waits_by_tensor: Callable[[], bool] = getattr(
    _distributed_c10d, "_allow_inflight_collective_as_graph_input", bool
)


class _Local(threading.local):
    issued: list[IssuedOperation] | None = None
    """What this thread issues in the call of a method of ``ProcessGroup`` that is running."""


class OperationWatch:
    """One test's."""

    def __init__(self, production: Production, detectors: Iterable[Detector]) -> None:
        self._production = production
        self._detectors = tuple(detectors)
        self._groups: dict[str, Group] = {}
        self._local = _Local()
        self._made: dict[str, tuple[int, str | None]] = {}
        """Which of its name a group is, and the backend that its maker named, by its name."""
        self._numbers = itertools.count(1)
        self._handles: dict[int, tuple[weakref.ref[Any], Handle]] = {}
        self._undo = contextlib.ExitStack()

    def start(self) -> None:
        for method in BY_METHOD:
            self._wrap_issuing(method)
        for method in _USES:
            self._wrap_using(method)
        maker = getattr(distributed_c10d, _MAKER)
        self._put(distributed_c10d, _MAKER, TransparentWrapper(maker, self._group_begins))
        hide_own_frames_now()
        self._undo.callback(observe(self._notice))

    def stop(self) -> dict[str, Any]:
        """End it; returns what the detectors send, by their names."""
        self._undo.close()
        self._handles.clear()
        ended = {detector.name: detector.ended() for detector in self._detectors}
        return {name: sent for name, sent in ended.items() if sent is not None}

    def _put(self, owner: Any, name: str, value: Any) -> None:
        original = vars(owner).get(name)
        setattr(owner, name, value)
        if original is None:  # inherited
            self._undo.callback(delattr, owner, name)
        else:
            self._undo.callback(setattr, owner, name, original)

    # ------------------------------------------------------------------ operators

    def _notice(self, call: OperatorCall) -> Callable[[], None] | None:
        form, places, args, _, raw = call
        group = self._groups.get(raw.group_name) or self._group(raw)
        origin = stack.origin_of(_getframe(2))
        on_host = bool(origin.objects) or form.operation in _ON_HOST
        operation = IssuedOperation(
            next(self._numbers),
            form,
            group,
            self._production.of(group.explicit, on_host=on_host) if group.is_known else "",
            threading.get_ident(),
            origin.site,
            origin.objects,
            origin.batch,
            origin.functional,
            None if places.root is None else args[places.root],
            None if places.peer is None else args[places.peer],
            0,
        )
        given = Given(places.names, args)
        if form.operation in ("send", "recv"):
            operation.tag = given.get("tag", 0)
            operation.peer = -1 if operation.peer is None else operation.peer
        if self._local.issued is not None:
            self._local.issued.append(operation)
        ends = [detector.issued(operation, given) for detector in self._detectors]
        return _all_of([end for end in ends if end is not None])

    def _group(self, raw: Any) -> Group:
        name = raw.group_name
        try:
            label, members = described(raw)
            own = dist.get_rank()
        except (KeyError, ValueError):  # made by hand, and unknown to torch's Python
            label, members, own = name, (), -1
        is_torchs = name in self._made or raw is distributed_c10d._world.default_pg
        which, explicit = self._made.get(name, (0, None))
        group = Group(name, which, label, members, own, is_torchs and bool(members), explicit)
        self._groups[name] = group
        return group

    def _group_begins(self, _instance: None, frame: FrameType) -> None:
        """Note by which backend a group is made, before torch fills in the default group's."""
        name = str(frame.f_locals.get("group_name"))
        explicit: str | None = None
        if frame.f_code.co_name != "init_process_group":
            maker = frame.f_back
            if maker is None or maker.f_code.co_name != "new_group":
                return
            explicit = maker.f_locals["backend"]
        which, _ = self._made.get(name, (0, None))
        self._made[name] = which + 1, None if explicit is None else str(explicit).lower()
        self._groups.pop(name, None)

    # ------------------------------------------------------------------ handles

    def _wrap_issuing(self, method: str) -> None:
        original = getattr(dist.ProcessGroup, method, None)
        if original is None:  # missing in an older or newer torch
            return

        def watched(group: dist.ProcessGroup, *args: Any, **kwargs: Any) -> Any:
            outer = self._local.issued
            mine: list[IssuedOperation] = []
            self._local.issued = mine
            try:
                work = original(group, *args, **kwargs)
            finally:
                self._local.issued = outer
            if work is not None and mine:
                self._received(work, mine, is_users=called_by_user(_getframe(1)))
            return work

        self._put(dist.ProcessGroup, method, watched)

    def _received(self, work: Any, operations: list[IssuedOperation], *, is_users: bool) -> None:
        if type(work).wait is not dist.Work.wait:  # a class in Python: its waits are not seen
            return
        handle, key = Handle(operations, is_users=is_users), id(work)
        # Then torch's wait_tensor takes the tensor, and the handle is not needed.
        handle.used = _waits_by_tensor()

        def gone(reference: weakref.ref[Any]) -> None:
            # By now another work may have the number.
            if self._handles.get(key, (None,))[0] is reference:
                del self._handles[key]
                for detector in self._detectors:
                    detector.lost(handle)

        self._handles[key] = weakref.ref(work, gone), handle
        for detector in self._detectors:
            detector.received(handle)

    def _wrap_using(self, method: str) -> None:
        original: Any = getattr(dist.Work, method, None)
        if original is None:
            return

        def used(work: dist.Work, *args: Any, **kwargs: Any) -> Any:
            reference, handle = self._handles.get(id(work), (None, None))
            if handle is None or reference is None or reference() is not work:
                return original(work, *args, **kwargs)
            handle.used |= method != "is_completed"
            if method not in _COMPLETES and method != "is_completed":
                for detector in self._detectors:
                    detector.passed_on(handle)
            result = original(work, *args, **kwargs)
            if method in _COMPLETES or (method == "is_completed" and result):
                handle.used = True
                for detector in self._detectors:
                    detector.waited(handle)
            return result

        self._put(dist.Work, method, used)


def _all_of(ends: list[Callable[[], None]]) -> Callable[[], None] | None:
    if len(ends) < 2:
        return ends[0] if ends else None

    def ended() -> None:
        for end in ends:
            end()

    return ended
