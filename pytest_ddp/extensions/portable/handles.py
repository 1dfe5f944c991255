"""Handles that user code received and lost without a wait.

Works that stay in torch or in a package are not judged: DDP's, those of comm hooks, of functional
collectives.
"""

from __future__ import annotations

from sys import _getframe
from typing import Any

from pytest_ddp.extensions.portable.events import Detector, IssuedOperation
from pytest_ddp.extensions.portable.finding import FindingKind, PortabilityFinding
from pytest_ddp.rank.groups.torch_state import unwaited
from pytest_ddp.rank.operations.operation import Given
from pytest_ddp.rank.operations.origins import user_frame

_CONSEQUENCE = (
    "On NCCL the stream of the computation never waits for this operation: the result may be read "
    "before it is there, and the memory of its tensors may be used again while it runs. On gloo a "
    "message whose handle is gone may never be delivered."
)
_FIX = "keep the handle and call its wait() before the tensor is used again."


class LostHandles(Detector):
    name = "handles"

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, str], None] = {}
        self._functional: dict[tuple[str, str], None] = {}
        self._is_library = False
        """Whether a part of torch or a package has called a functional collective."""
        self._unread = unwaited()

    def issued(self, operation: IssuedOperation, given: Given) -> None:
        if operation.functional == "user":
            self._functional[operation.name, operation.place] = None
        elif operation.functional:
            self._is_library = True

    def lost(self, operation: IssuedOperation) -> None:
        if operation.is_used or not operation.is_users or not operation.is_judged:
            return
        frame = user_frame(_getframe(1))
        gone = "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
        self._found[operation.name, operation.place, gone] = None

    def ended(self) -> Any:
        found = [lost_handle(*found) for found in self._found]
        number = unwaited() - self._unread
        # torch knows how many were not read, and not which.
        if number > 0 and self._functional and not self._is_library:
            found.append(unread_results(number, tuple(self._functional)))
        return [one.to_json() for one in found] or None


def lost_handle(operation: str, issued: str, gone: str) -> PortabilityFinding:
    end = ("gone after", gone)
    if not gone or "/site-packages/" in gone:
        end = ("gone when its function had returned", "")
    return PortabilityFinding(
        FindingKind.LOST_HANDLE,
        f"nothing waited for {operation}",
        (("issued", issued), end),
        _CONSEQUENCE,
        _FIX,
    )


def unread_results(number: int, lines: tuple[tuple[str, str], ...]) -> PortabilityFinding:
    results = "result" if number == 1 else "results"
    return PortabilityFinding(
        FindingKind.UNREAD_RESULT,
        f"nothing read {number} {results} of functional collectives",
        lines,
        "Nothing has waited for them; if their tensors are used otherwise, it may be too early.",
        "read the result, or leave out the collective.",
        is_warning=True,
    )
