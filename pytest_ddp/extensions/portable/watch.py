"""The watch of a test in a rank: a subscriber of the stream, for what looks for findings."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, MutableMapping
from sys import _getframe
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch._C import _distributed_c10d
from torch.distributed import distributed_c10d

from pytest_ddp.extensions.comms import stack
from pytest_ddp.extensions.comms.block import described, labels
from pytest_ddp.extensions.portable.calls import LostHandles, difference_findings
from pytest_ddp.extensions.portable.finding import PortabilityFinding
from pytest_ddp.extensions.portable.issued import Group, IssuedOperation, OperationLog
from pytest_ddp.extensions.portable.options import Production
from pytest_ddp.extensions.portable.touches import TouchedBuffers
from pytest_ddp.rank.operations.operation import Issuer, Operation
from pytest_ddp.rank.operations.origins import called_by_user, outside
from pytest_ddp.rank.operations.process import operations_of_process
from pytest_ddp.rank.operations.stream import Needs
from pytest_ddp.rank.status.landmarks import TransparentWrapper
from pytest_ddp.rank.status.uncompiled import hide_own_frames_now
from pytest_ddp.system.stdlib import threading

_ON_HOST = frozenset({"barrier"})
"""Operations without a tensor, which torch sends by the CPU's backend where there is one."""
_MAKER = "_new_process_group_helper"
_waits_by_tensor: Callable[[], bool] = getattr(
    _distributed_c10d, "_allow_inflight_collective_as_graph_input", bool
)


class OperationWatch:
    """What is seen of one test's operations, on the threads that communicate.

    Args:
        production: the backends of production.
        default_group_was_used: whether a fixture that is wider than the test may have used it.
    """

    def __init__(self, production: Production, *, default_group_was_used: bool) -> None:
        self._production = production
        self._operation_log = OperationLog(default_group_was_used=default_group_was_used)
        self._call_findings: dict[PortabilityFinding, None] = {}
        self._handles, self._buffers = LostHandles(), TouchedBuffers()
        self._groups: dict[str, Group] = {}
        self._made: dict[str, tuple[int, str | None]] = {}
        """How many groups of a name there were, and the backend that the last one's maker named."""
        self._issued: MutableMapping[Operation, IssuedOperation] = WeakKeyDictionary()
        """Operations whose issue has not returned, or whose handle Python code has."""
        self._undo = contextlib.ExitStack()

    def start(self) -> None:
        maker = getattr(distributed_c10d, _MAKER)
        wrapper = TransparentWrapper(maker, self._group_begins)
        setattr(distributed_c10d, _MAKER, wrapper)
        self._undo.callback(setattr, distributed_c10d, _MAKER, maker)
        hide_own_frames_now()
        needs = Needs.CPP | Needs.ARGUMENTS | Needs.USES
        self._undo.callback(operations_of_process().subscribe(self, needs))

    def stop(self) -> dict[str, Any]:
        """End it; returns what the pytest process judges."""
        self._undo.close()
        self._issued.clear()
        found = [*self._handles.findings(), *self._buffers.findings(), *self._call_findings]
        return {"found": [one.to_json() for one in found], **self._operation_log.to_json()}

    # ------------------------------------------------------------------ operations

    def before(self, operation: Operation) -> None:
        given, raw = operation.given, operation.process_group
        if operation.issuer is Issuer.FIXTURE or given is None:
            return
        form = operation.form
        group = self._groups.get(operation.group) or self._group(raw)
        origin = stack.origin_of(outside(_getframe(1)))
        on_host = bool(origin.objects) or form.operation in _ON_HOST
        issued = IssuedOperation(
            form=form,
            group=group,
            backend=self._production.of(group.explicit, on_host=on_host) if group.is_known else "",
            thread=threading.get_ident(),
            origin=origin,
            root=given.get("root_rank"),
            peer=given.get("dst", given.get("src", -1 if form.is_message else None)),
            tag=given.get("tag", 0),
        )
        self._issued[operation] = issued
        self._operation_log.issued(issued, operation.nbytes if form.is_message else 0)
        self._handles.issued(issued)
        self._buffers.issued(issued, given)
        self._call_findings.update(dict.fromkeys(difference_findings(issued, given)))

    def returned(self, operation: Operation, work: Any, error: BaseException | None) -> None:
        # The waits of a class in Python are not seen.
        if work is None or type(work).wait is not dist.Work.wait:
            self._issued.pop(operation, None)
        elif (issued := self._issued.get(operation)) is not None:
            # Where torch's wait_tensor takes the tensor, the handle is not needed.
            issued.is_users = called_by_user(_getframe(1)) and not _waits_by_tensor()
            self._buffers.received(issued)

    def waited(self, operation: Operation, error: BaseException | None) -> None:
        if error is None and (issued := self._issued.get(operation)) is not None:
            self._operation_log.waited(issued)
            self._buffers.waited(issued)

    def passed_on(self, operation: Operation) -> None:
        if (issued := self._issued.get(operation)) is not None:
            self._buffers.passed_on(issued)

    def dropped(self, operation: Operation) -> None:
        if (issued := self._issued.pop(operation, None)) is not None:
            self._handles.dropped(issued)
            self._buffers.dropped(issued)

    # ------------------------------------------------------------------ groups

    def _group(self, raw: Any) -> Group:
        name = raw.group_name
        try:
            label, members = described(raw)
            own = dist.get_rank()
        except (KeyError, ValueError):  # made by hand, and unknown to torch's Python
            label, members, own = name, (), -1
        is_torchs = name in self._made or raw is distributed_c10d._world.default_pg
        which, explicit = self._made.get(name, (0, None))
        alike = [each for each, other in labels().items() if other == label]
        if name in alike[1:]:
            label = f"{label} (group {alike.index(name) + 1})"
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
