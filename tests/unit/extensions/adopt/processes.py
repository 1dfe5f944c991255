"""Served processes that have ended, made by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from pytest_ddp.extensions.adopt.ranks.served_messages import RETURNED
from pytest_ddp.extensions.adopt.watching import ExitDeadline, Watched
from pytest_ddp.outcome.outcome import Hang
from pytest_ddp.protocol.rank_status import RankStatus
from pytest_ddp.protocol.status_page import StatusNote


@dataclass
class Files:
    """What the instruments of a process have written."""

    noted: StatusNote
    dumped: str = ""
    is_closed: bool = False

    def mark(self) -> StatusNote:
        return self.noted

    def stacks(self) -> str:
        return self.dumped

    def close(self) -> None:
        self.is_closed = True


@dataclass(eq=False)
class Popen:
    """A process that has ended, or runs: its exit code is None then."""

    returncode: int | None
    files: Files
    pid: int = 4711
    exit_code_was_read: bool = False
    ended_by_test: bool = False
    was_joined: bool = False
    ends_with: int | None = None
    """The exit code of one that is being killed."""

    @property
    def has_returned(self) -> bool:
        return self.files.noted.phase == (RETURNED,)

    def poll(self) -> int | None:
        return self.returncode

    def is_reaped(self, timeout: float) -> bool:
        self.returncode = self.ends_with
        return self.returncode is not None


@dataclass(eq=False)
class Process:
    """The process, as it is watched."""

    popen: Popen
    label: str = "SpawnProcess-1"
    raised: str = ""
    nodeid: str = "test_it.py::test_it"
    due: ExitDeadline = ExitDeadline.NOW
    is_judged: bool = True
    rank: int = -1
    hang: Hang | None = None
    status: RankStatus | None = None

    @property
    def watched(self) -> Watched:
        return cast("Watched", self)


def ended(
    code: int | None, mark: StatusNote | None = None, stacks: str = "", **known: Any
) -> Process:
    """One that has ended with this code.

    Args:
        code: its exit code.
        mark: what its page says; by default that its target has returned.
        stacks: the dump of its faults.
        known: attributes of the process or of its ``popen``.
    """
    files = Files(StatusNote(phase=(RETURNED,)) if mark is None else mark, stacks)
    of_popen = {
        name: known.pop(name)
        for name in ("exit_code_was_read", "ended_by_test", "was_joined", "ends_with")
        if name in known
    }
    return Process(Popen(code, files, **of_popen), **known)
