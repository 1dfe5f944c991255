"""What calls of one rank show by themselves: rows of the table, and handles without a wait.

Works that stay in torch or in a package are not judged: DDP's, those of comm hooks, of functional
collectives.
"""

from __future__ import annotations

from collections.abc import Iterator
from sys import _getframe
from typing import Any

import torch

from pytest_ddp.extensions.comms.block import reduction_of
from pytest_ddp.extensions.portable.differences import (
    CONTIGUOUS,
    DENSE,
    DIFFERENCES,
    SPARSE,
    WITH_GAPS,
    Difference,
    finding_of,
)
from pytest_ddp.extensions.portable.finding import FindingKind, PortabilityFinding
from pytest_ddp.extensions.portable.issued import IssuedOperation
from pytest_ddp.rank.groups.torch_state import unwaited
from pytest_ddp.rank.operations.operation import Given, each_tensor
from pytest_ddp.rank.operations.origins import user_line

# ------------------------------------------------------------------ rows of the table


def difference_findings(operation: IssuedOperation, given: Given) -> Iterator[PortabilityFinding]:
    """The findings for the rows of the table that a call of this rank is."""
    if operation.is_judged:
        form = "recv_any_source" if operation.peer == -1 else operation.form.name
        for row in differences(form, given.args, reduction_of(given.get("reduce_op"))):
            yield finding_of(row, (("called", operation.site),), operation.name)


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


# ------------------------------------------------------------------ handles


class LostHandles:
    """Handles that user code received and lost without a wait."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, str], None] = {}
        self._functional: dict[tuple[str, str], None] = {}
        self._is_library = False
        """Whether a part of torch or a package has called a functional collective."""
        self._unread = unwaited()

    def issued(self, operation: IssuedOperation) -> None:
        if operation.origin.functional == "user":
            self._functional[operation.name, operation.site] = None
        elif operation.origin.functional:
            self._is_library = True

    def dropped(self, operation: IssuedOperation) -> None:
        if operation.is_users and operation.is_judged:
            self._found[operation.name, operation.site, user_line(_getframe(1))] = None

    def findings(self) -> Iterator[PortabilityFinding]:
        yield from (lost_handle(*found) for found in self._found)
        number = unwaited() - self._unread
        # torch knows how many were not read, and not which.
        if number > 0 and self._functional and not self._is_library:
            yield unread_results(number, tuple(self._functional))


def lost_handle(operation: str, issued: str, gone: str) -> PortabilityFinding:
    """The finding for an operation, by its name, its line, and the line where the handle went."""
    end = ("gone after", gone)
    if not gone or "/site-packages/" in gone:
        end = ("gone when its function had returned", "")
    return PortabilityFinding(
        FindingKind.LOST_HANDLE,
        f"nothing waited for {operation}",
        (("issued", issued), end),
        "On NCCL the stream of the computation never waits for this operation: the result may be "
        "read before it is there, and the memory of its tensors may be used again while it runs. "
        "On gloo a message whose handle is gone may never be delivered.",
        "keep the handle and call its wait() before the tensor is used again.",
    )


def unread_results(number: int, lines: tuple[tuple[str, str], ...]) -> PortabilityFinding:
    """The finding for results of functional collectives, of which only the number is known."""
    results = "result" if number == 1 else "results"
    return PortabilityFinding(
        FindingKind.UNREAD_RESULT,
        f"nothing read {number} {results} of functional collectives",
        lines,
        "Nothing has waited for them; if their tensors are used otherwise, it may be too early.",
        "read the result, or leave out the collective.",
        is_warning=True,
    )
