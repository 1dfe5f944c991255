"""Calls that are a row of the table of differences, and messages for those of several ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from pytest_ddp.extensions.comms.block import reduction_of
from pytest_ddp.extensions.portable.buffers import each_tensor
from pytest_ddp.extensions.portable.differences import (
    CONTIGUOUS,
    DENSE,
    DIFFERENCES,
    SPARSE,
    WITH_GAPS,
    Difference,
    finding_of,
)
from pytest_ddp.extensions.portable.events import Detector, IssuedOperation
from pytest_ddp.extensions.portable.first_batches import FirstOperation
from pytest_ddp.extensions.portable.point_to_point import Message
from pytest_ddp.rank.operations.operation import Given

_KEPT = 50_000
"""Messages at most; of a rank with more, none are judged."""


class Differences(Detector):
    name = "differences"

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, str], None] = {}

    def issued(self, operation: IssuedOperation, given: Given) -> None:
        if not operation.is_judged:
            return
        form = operation.form.name
        if operation.peer == -1:
            form = "recv_any_source"
        name = reduction_of(given.get("reduce_op"))
        for row in differences(form, given.args, name):
            self._found[row.name, operation.name, operation.place] = None

    def ended(self) -> Any:
        rows = {row.name: row for row in DIFFERENCES}
        found = [
            finding_of(rows[row], f"{name}: {rows[row].what}", (("called", place),))
            for row, name, place in self._found
        ]
        return [one.to_json() for one in found] or None


class MessageLog(Detector):
    """The messages that NCCL would send, in the order of their issue."""

    name = "messages"

    def __init__(self) -> None:
        self._messages: list[Message] = []

    def issued(self, operation: IssuedOperation, given: Given) -> None:
        if not operation.is_judged or operation.peer is None or len(self._messages) > _KEPT:
            return
        group = operation.group
        self._messages.append(
            Message(
                group.key,
                group.members[operation.peer] if operation.peer >= 0 else -1,
                operation.form.operation == "send",
                operation.tag,
                operation.batch > 0,
                operation.thread,
                operation.place,
                operation.name,
                sum(tensor.nbytes for tensor in each_tensor(given.args[0])),
            )
        )

    def ended(self) -> Any:
        return self._messages if 0 < len(self._messages) <= _KEPT else None


class FirstOperations(Detector):
    """The first collective or batch of this rank on each group that NCCL has in production."""

    name = "first operations"

    def __init__(self, *, default_group_was_used: bool) -> None:
        self._default_group_was_used = default_group_was_used
        """Whether a fixture may have used it before the test: then its first one is not known."""
        self._found: dict[str, FirstOperation] = {}

    def issued(self, operation: IssuedOperation, given: Given) -> None:
        group, is_batch = operation.group, operation.batch > 0
        if not operation.is_judged or (operation.peer is not None and not is_batch):
            return
        if self._default_group_was_used and not group.made:
            return
        if group.key not in self._found and operation.form.operation != "monitored_barrier":
            name = f"batch_isend_irecv on {group.label}" if is_batch else operation.name
            self._found[group.key] = FirstOperation(
                group.key, group.label, group.members, is_batch, name, operation.place
            )

    def ended(self) -> Any:
        return [*self._found.values()] or None


def differences(form: str, args: tuple[Any, ...], reduce_op: str | None) -> Iterator[Difference]:
    """Yield the rows that a call of one of torch's operators is.

    Args:
        form: public name of the form; ``recv_any_source`` for a recv without a source.
        args: of the operator; its tensors are among the first two.
        reduce_op: such as ``SUM``; None for operations that do not reduce.
    """
    dtypes = {str(tensor.dtype).removeprefix("torch.") for tensor in each_tensor(list(args[:2]))}
    for row in DIFFERENCES:
        if row.judged != "call" or (row.forms and form not in row.forms):
            continue
        if row.reduce_ops and reduce_op not in row.reduce_ops:
            continue
        if row.dtypes and not dtypes & row.dtypes:
            continue
        if row.not_dtypes and dtypes <= row.not_dtypes:
            continue
        if row.layouts and not any(
            layout_of(tensor) in row.layouts
            for place in row.places.get(form, ())
            for tensor in each_tensor(args[place])
        ):
            continue
        yield row


def layout_of(tensor: torch.Tensor) -> str:
    """How its elements lie in memory."""
    if tensor.layout != torch.strided:
        return SPARSE
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    memory_format = formats.get(tensor.dim(), torch.contiguous_format)
    if tensor.is_contiguous() or tensor.is_contiguous(memory_format=memory_format):
        return CONTIGUOUS
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != expected:
            return WITH_GAPS
        expected *= size
    return DENSE
