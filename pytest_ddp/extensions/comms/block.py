"""The context manager ``ddp.comms(model)``, and what it keeps of each operation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from sys import _getframe
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from pytest_ddp.extensions.comms import UNLIKE_COMMUNICATION, UNUSABLE_BLOCK, stack
from pytest_ddp.extensions.comms.modules import Modules, is_in_backward
from pytest_ddp.extensions.comms.records import Communication, Entry, Moment, Record
from pytest_ddp.extensions.comms.snapshot import lines_of
from pytest_ddp.extensions.comms.snapshot_files import compare
from pytest_ddp.protocol.messages import coded
from pytest_ddp.rank.groups.backends import promises_of
from pytest_ddp.rank.operations.operation import Issuer, Operation, name_of, new_named
from pytest_ddp.rank.operations.origins import outside, user_frame
from pytest_ddp.rank.operations.process import operations_of_process
from pytest_ddp.rank.operations.stream import Needs
from pytest_ddp.rank.operations.table import Form
from pytest_ddp.rank.status.uncompiled import hide_own_frames_now
from pytest_ddp.system.stdlib import threading

if TYPE_CHECKING:
    from typing import Self

    import pytest

    from pytest_ddp.fixture import Ddp

_RED_OP_TYPES: Any = dist.ReduceOp.RedOpType
_REDUCE_OPS = {int(op): name for name, op in _RED_OP_TYPES.__members__.items()}
_PLAIN_LABELS = {"default_pg": "world", "undefined": "", "": ""}
"""Descriptions that torch gives to groups by itself."""


def _unusable(words: str) -> RuntimeError:
    return coded(RuntimeError(words), UNUSABLE_BLOCK)


def reduction_of(reduce_op: Any) -> str | None:
    """The name of a dispatched reduction, such as ``SUM``; None without one, and with torch 2.8.

    In torch 2.8 the object that is dispatched has no ``op``.
    """
    op = getattr(reduce_op, "op", None)
    return None if op is None else _REDUCE_OPS.get(op())


class _BlockEvents(NamedTuple):
    """What subscribes: a block has no public methods for it."""

    before: Callable[[Operation], None]
    returned: Callable[[Operation, Any, BaseException | None], None]


class _Group(NamedTuple):
    label: str
    members: tuple[int, ...]


class _Seen(NamedTuple):
    """What is kept on the thread that communicates; the rest is worked out when it is read."""

    form: Form
    context: stack.Context
    group: str
    tensors: int
    elements: int
    bytes: int
    dtype: torch.dtype | None
    reduce_op: Any
    """The boxed reduction: to look into it takes as long as to read a short stack."""
    root: int | None
    peer: int | None
    is_async: bool
    step: int
    in_backward: bool
    backward_of: str | None
    bucket: tuple[str, ...] | None


class Comms(Communication):
    """What its block communicates on this rank.

    After the block it answers questions; while the block is open, of what there was so far. It
    communicates nothing, so that a block on some ranks only is legal. What the ``ddp`` fixture
    exchanges is not among the records.
    """

    def __init__(
        self, ddp: Ddp, item: pytest.Item, model: torch.nn.Module | None, warmup: int
    ) -> None:
        super().__init__(self._counted, _name_of)
        self._ddp, self._item = ddp, item
        if warmup and model is None:
            words = f"ddp.comms(warmup={warmup}): pass the model whose steps are counted"
            raise coded(ValueError(words), UNUSABLE_BLOCK)
        self._warmup = warmup
        self._seen: list[_Seen | Moment] = []
        self._modules = Modules(model, self._seen.append)
        self._groups: dict[str, _Group] = {}
        self._before: dict[str, int] = {}
        self._observed: Counter[str] = Counter()
        self._running_operations: dict[Operation, int | None] = {}
        """Operations that have begun and not returned, and their group's number when they began."""
        self._lock = threading.Lock()
        self._call: tuple[object, ...] = ()
        self._progress = 0
        self._end: Callable[[], None]
        """Ends the observation; set while the block is open."""
        self._frame: FrameType | None = None
        self.opened_at = ""
        """File and line of the block; empty before it is entered."""
        self.unseen: tuple[str, ...] = ()
        """Groups whose operations cannot be seen, as those written in Python."""

    def __enter__(self) -> Self:
        global open_comms
        frame = user_frame(_getframe(1))
        place = "?" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
        if open_comms is not None:
            first = open_comms.opened_at
            raise _unusable(f"ddp.comms: blocks do not nest; leave the one opened at {first} first")
        if self.opened_at:
            raise _unusable(f"ddp.comms: used before, at {self.opened_at}; make one per block")
        hide_own_frames_now()
        self._frame, self.opened_at = frame, place
        # Numbers after the kernels: what another thread issues in between is counted twice then,
        # and not missed.
        needs = Needs.CPP | Needs.ARGUMENTS
        self._end = operations_of_process().subscribe(
            _BlockEvents(self._begins, self._returned), needs
        )
        self._before = dict(_numbers())
        open_comms = self
        used.append(self)
        try:
            self._modules.attach()
        except BaseException:  # of a module that has its own way to register hooks
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        __tracebackhide__ = True
        was_open = open_comms is self
        try:
            missed = self._missed() if was_open else {}
        finally:
            self.close()
        if error is None and was_open:
            for label, number in missed.items():
                raise _unusable(
                    f"ddp.comms: a backend of group {label} was called directly, {number} times; "
                    "that is not seen,\nand the counts would be too small"
                )
            if self._warmup and self._modules.steps <= self._warmup:
                raise _unusable(
                    f"ddp.comms(warmup={self._warmup}): the model has run {self._modules.steps} "
                    "forward passes, so that no step is left.\nRun more steps, or lower warmup"
                )

    def close(self) -> None:
        """Stop recording; the records stay."""
        global open_comms
        if open_comms is self:
            self._end()
            self._modules.detach()
            self._frame = open_comms = None
            self.unseen = tuple(name for name, group in _all_groups() if not _is_torchs(group))

    def assert_matches_snapshot(self, name: str = "") -> None:
        """Fail unless what all ranks communicated is as in a file beside the test.

        All ranks call it. ``--ddp-update-comms`` writes the file, one for all ranks.

        Args:
            name: for a test that has several snapshots.

        Raises:
            AssertionError: it differs, or there is no file.
            DdpError: a rank ended its test, died, or is at another operation of ``ddp``.
        """
        __tracebackhide__ = True
        ranks = self._ddp.gather(lines_of(self))
        found = None
        if self._ddp.rank == 0:
            update = self._item.config.getoption("ddp_update_comms")
            found = compare(self._item, name, torch.__version__, ranks, update=update)
        if (found := self._ddp.broadcast(found)) is not None:
            raise coded(AssertionError(f"ddp.comms: {found}"), UNLIKE_COMMUNICATION)

    def table(self) -> str:
        unseen = [f"not seen: operations on {name}, written in Python" for name in self.unseen]
        return "\n".join([super().table(), *unseen])

    def _counted(self) -> list[Entry]:
        if not self.opened_at:
            raise _unusable("ddp.comms: nothing is recorded yet; write `with ddp.comms() as ...`")
        entries = (one if isinstance(one, Moment) else self._record(one) for one in [*self._seen])
        return [entry for entry in entries if entry.step > self._warmup or not self._warmup]

    def _begins(self, operation: Operation) -> None:
        if operation.issuer is Issuer.FIXTURE or operation.given is None:
            return
        form, name, group = operation.form, operation.group, operation.process_group
        given, tensors = operation.given, operation.tensors
        is_python = operation.issuer is Issuer.PYTHON
        context = stack.read(outside(_getframe(1)), self._frame, is_python=is_python)
        if not (context.objects and self._goes_on(context)):
            if name not in self._groups:
                self._groups[name] = described(group)
            in_backward = is_in_backward()
            bucket = None
            if in_backward and context.is_bucket and form.operation == "all_reduce":
                bucket = self._modules.take_bucket(tensors[0].numel(), tensors[0].dtype)
            fields = (
                form,
                context,
                name,
                len(tensors),
                sum([one.numel() for one in tensors]),
                sum([one.nbytes for one in tensors]),
                tensors[0].dtype if tensors else None,
                given.get("reduce_op"),
                given.get("root_rank"),
                given.get("dst", given.get("src", -1 if form.is_message else None)),
                # Where a call leaves out the last arguments, it is.
                given.get("async_op", "async_op" in given.names),
                self._modules.steps,
                in_backward,
                self._modules.in_backward if in_backward else None,
                bucket,
            )
            self._seen.append(new_named(_Seen, fields))

        try:
            number = group._get_sequence_number_for_group()
        except RuntimeError:  # a backend without numbers
            number = None
        self._running_operations[operation] = number

    def _returned(self, operation: Operation, work: Any, error: BaseException | None) -> None:
        if operation.issuer is Issuer.FIXTURE:
            return
        with self._lock:
            number = self._running_operations.pop(operation)
            if number is not None:
                now = operation.process_group._get_sequence_number_for_group()
                self._observed[operation.group] += now - number

    def _goes_on(self, context: stack.Context) -> bool:
        """Whether a collective of objects goes on that has been recorded."""
        call, progress = (threading.get_ident(), *context.call), self._progress
        before, self._call, self._progress = self._call, call, context.progress
        return call == before and context.progress > progress

    def _record(self, seen: _Seen) -> Record:
        form, context = seen.form, seen.context
        objects = context.objects
        label, members = self._groups[seen.group]
        issued_in = self._modules.name(context.issued_in)
        if issued_in is None:  # the model's own name is empty
            issued_in = seen.backward_of
        called = f"c++.{form.name}" if context.issuer == "c++" else context.issuer or form.name
        return Record(
            operation=objects or form.operation,
            form=objects or called,
            group=label,
            members=members,
            tensors=seen.tensors,
            elements=None if objects else seen.elements,
            dtype=None if objects or seen.dtype is None else str(seen.dtype).removeprefix("torch."),
            bytes=None if objects else seen.bytes,
            reduce_op=reduction_of(seen.reduce_op),
            root=seen.root,
            peer=seen.peer,
            is_async=seen.is_async or (form.is_message and not context.is_waited),
            cpu_form=bool(objects) or form.name in context.cpu_forms,
            step=seen.step,
            phase="backward" if seen.in_backward else "" if issued_in is None else "forward",
            issued_in=issued_in,
            belongs_to=seen.bucket or self._modules.name(context.belongs_to),
            site="" if context.site is None else str(context.site),
            group_name=seen.group,
            function="" if context.site is None else context.site.code.co_name,
        )

    def _missed(self) -> dict[str, int]:
        """How many operations of groups did not pass the kernels, by the group's label.

        Numbers come first, and a group on which another thread is about to finish one is left out.
        """
        numbers, by_name = dict(_numbers()), labels()
        with self._lock:
            busy = {operation.group for operation in [*self._running_operations]}
            missed = {
                by_name[name]: number - self._before.get(name, 0) - self._observed.get(name, 0)
                for name, number in numbers.items()
                if name not in busy
            }
        return {label: number for label, number in missed.items() if number > 0}


open_comms: Comms | None = None
"""The block that is open in this process."""
used: list[Comms] = []
"""The blocks of the running test."""


# ------------------------------------------------------------------ groups


def _all_groups() -> Iterable[tuple[str, Any]]:
    groups = dist.distributed_c10d._world.pg_map
    return [(name_of(group), group) for group in groups]


def _is_torchs(group: Any) -> bool:
    return type(group) is dist.ProcessGroup


def labels() -> dict[str, str]:
    """The label of each group of this rank by its name, in the order in which they were made."""
    return {
        name: described(group).label if _is_torchs(group) else name for name, group in _all_groups()
    }


def described(group: Any) -> _Group:
    members = tuple(dist.get_process_group_ranks(group))
    description = str(getattr(group, "group_desc", ""))
    label = _PLAIN_LABELS.get(description, description.removeprefix("mesh_"))
    return _Group(label or "ranks " + ",".join(map(str, members)), members)


def _name_of(group: object) -> str | None:
    if isinstance(group, str):
        if group not in labels().values():
            raise _unknown_group(group)
        return None
    if isinstance(group, DeviceMesh):
        group = group.get_group()
    for name, known in _all_groups():
        if known is group:
            if not _is_torchs(known):
                words = f"ddp.comms: {name} is written in Python: its calls are not seen"
                raise coded(ValueError(words), UNUSABLE_BLOCK)
            return name
    raise _unknown_group(group)


def _unknown_group(group: object) -> ValueError:
    there = ", ".join(sorted({*labels().values()}))
    words = f"ddp.comms: no group {group!r} on this rank; the groups are {there}"
    return coded(ValueError(words), UNUSABLE_BLOCK)


def _numbers() -> Iterable[tuple[str, int]]:
    """The sequence numbers of the groups whose backends count every operation."""
    for name, group in _all_groups():
        if _is_torchs(group) and promises_of(group).numbered:
            yield name, group._get_sequence_number_for_group()
