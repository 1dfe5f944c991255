"""Findings for buffers that are touched in flight, and for the tensor of reduce elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from sys import _getframe
from typing import Any

import torch

from pytest_ddp.extensions.portable.buffers import (
    READ_AND_WRITTEN,
    Buffers,
    Flight,
    Touch,
    is_root,
    uses_of,
)
from pytest_ddp.extensions.portable.differences import DIFFERENCES, finding_of
from pytest_ddp.extensions.portable.events import Detector, IssuedOperation
from pytest_ddp.extensions.portable.finding import FindingKind, PortabilityFinding
from pytest_ddp.extensions.portable.touches import TouchMode
from pytest_ddp.extensions.portable.unspecified import Unspecified
from pytest_ddp.rank.operations.operation import Given
from pytest_ddp.rank.operations.origins import user_frame
from pytest_ddp.system.stdlib import threading

_CONSEQUENCE = (
    "On NCCL an operation that was issued runs at any time until a wait for it, or for a later one "
    "of its group: the values may be those of before or after, or a mixture."
)
_FIX = "wait for the operation before its tensor is used, or give it a copy."


class TouchedBuffers(Detector):
    name = "buffers"

    def __init__(self) -> None:
        self._found: dict[tuple[Any, ...], PortabilityFinding] = {}
        self._buffers = Buffers(self._note)
        self._unspecified = Unspecified(self._note_look)
        self._mode = TouchMode(self._buffers, self._unspecified)
        self._issued: dict[int, Flight | None] = {}
        """What each thread has issued last; only that may have a handle that is to come."""
        self._reduced: dict[int, list[torch.Tensor]] = {}
        """Tensors of reduce operations with another destination that are not complete, by the
        operation's number."""

    def issued(self, operation: IssuedOperation, given: Given) -> None:
        if operation.is_judged:
            self._issued[operation.thread] = self._buffers.issued(operation, given)
            self._follow_values(operation, given)

    def received(self, operation: IssuedOperation) -> None:
        flight = self._issued.pop(threading.get_ident(), None)
        if flight is None or flight.operation is not operation:
            return
        # One that is used by now is the tensor's own: torch waits for it.
        if operation.is_users and not operation.is_used:
            self._buffers.received(flight)
            self._mode.follow()
            flight.is_watched = self._mode.is_there

    def waited(self, operation: IssuedOperation) -> None:
        self._buffers.waited(operation, _site())
        self._unspecified.leave(self._reduced.pop(operation.number, ()), operation)
        self._mode.follow()

    def passed_on(self, operation: IssuedOperation) -> None:
        self._buffers.passed_on(operation)
        self._reduced.pop(operation.number, None)
        self._mode.follow()

    def lost(self, operation: IssuedOperation) -> None:
        self._reduced.pop(operation.number, None)

    def ended(self) -> Any:
        self._buffers.end()
        self._unspecified.clear()
        self._reduced.clear()
        self._mode.follow()
        self._issued.clear()
        return [finding.to_json() for finding in self._found.values()] or None

    def _follow_values(self, operation: IssuedOperation, given: Given) -> None:
        """Note what an operation does with values that are unspecified, before it runs."""
        form, uses = operation.form.name, list(uses_of(operation, given.args))
        reads = [use.tensor for use in uses if not use.is_written or form in READ_AND_WRITTEN]
        part = next(filter(None, map(self._unspecified.part_of, reads)), None)
        if part is not None:
            self._note_look(part.operation, lambda: operation.place)
        self._unspecified.overwrite(use.tensor for use in uses if use.is_written)
        if form == "reduce" and not is_root(operation):
            self._reduced[operation.number] = reads

    def _note_look(self, operation: IssuedOperation, site: Callable[[], str]) -> None:
        lines = (("reduced", operation.place), ("used", site()))
        row = next(row for row in DIFFERENCES if row.judged == "values")
        key = operation.name, *lines
        self._found.setdefault(key, finding_of(row, f"{operation.name}: {row.what}", lines))

    def _note(self, touch: Touch) -> None:
        key = touch.operation.name, touch.operation.place, touch.touched_by, touch.touched_at
        self._found.setdefault(key, touched_buffer(touch))


def _site() -> str:
    frame = user_frame(_getframe(1))
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def touched_buffer(touch: Touch) -> PortabilityFinding:
    verb = "writes" if touch.is_write else "reads"
    if touch.touched_by:
        what = f"{touch.touched_by} {verb} a tensor of {touch.operation.name} before a wait for it"
        touched = (verb, touch.touched_at)
    else:
        what = f"a tensor of {touch.operation.name} is written before a wait for it"
        touched = ("written before" if touch.touched_at else "written by the end", touch.touched_at)
    lines = (("issued", touch.operation.place), touched)
    return PortabilityFinding(FindingKind.TOUCHED_BUFFER, what, lines, _CONSEQUENCE, _FIX)
