"""What a detector gets: operations, their arguments, and what becomes of their handles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from pytest_ddp.rank.operations.operation import Given, Site
from pytest_ddp.rank.operations.table import Form


class Group(NamedTuple):
    """A process group of this rank."""

    name: str
    """torch's own."""
    made: int
    """Which group of this name it is: names are used again after the default group is destroyed.
    0 for one that the test has found."""
    label: str
    """For people: a mesh dimension, the group's description, or its members."""
    members: tuple[int, ...]
    """Global ranks, by rank in the group."""
    own: int
    """This rank's global rank."""
    is_known: bool
    """Whether it was made under watch, or is the default group: nothing is said of others."""
    explicit: str | None
    """The backend that it was made with, if the maker named one."""

    @property
    def key(self) -> str:
        """The same on all its members, and no other group's."""
        return f"{self.name}#{self.made}"


@dataclass(slots=True, eq=False)
class IssuedOperation:
    """An operator that was called. It holds no tensor and no handle."""

    number: int
    """Which operation of this rank in this test it is, from 1."""
    form: Form
    group: Group
    backend: str
    """By which it is sent in production: ``nccl``, ``gloo``; empty if unknown."""
    thread: int
    site: Site | None
    """The line of the user's code."""
    objects: str | None
    """The collective of objects that it is a part of."""
    batch: int
    """Which of its call of ``batch_isend_irecv`` it is, from 1; 0 for none."""
    functional: str
    """Who called a functional collective, ``user`` or ``library``; empty for other operations."""
    root: int | None
    """Source or destination of a collective, as rank in the group."""
    peer: int | None
    """The other end of a message, as rank in the group; -1 for a receive from any."""
    tag: int
    is_users: bool = False
    """Whether torch has returned its handle to the user's code, and not to a part of torch or a
    package."""
    is_used: bool = False
    """Whether the user's code has waited for it, or passed the wait on."""

    @property
    def is_judged(self) -> bool:
        """Whether NCCL sends it in production."""
        return self.backend == "nccl"

    @property
    def name(self) -> str:
        """For people: ``all_reduce on dp``, ``send to rank 1 on world``."""
        ends = ""
        if self.peer is not None:
            way = "to" if self.form.operation == "send" else "from"
            end = "any rank" if self.peer < 0 else f"rank {self.group.members[self.peer]}"
            ends = f" {way} {end}"
        return f"{self.objects or self.form.name}{ends} on {self.group.label}"

    @property
    def place(self) -> str:
        return "" if self.site is None else str(self.site)


class Detector:
    """Looks for one kind of finding on one rank; this base class finds nothing.

    One is made for each test. Methods are called on the threads that communicate, several at the
    same time; ``ended`` is called once, on the main thread, after the test's teardown.
    """

    name: ClassVar[str]
    """The key of what it sends, and of its judge."""

    def issued(self, operation: IssuedOperation, given: Given) -> None:
        """Before the operator runs."""

    def received(self, operation: IssuedOperation) -> None:
        """Python code gets the handle, after the operator of its operation has returned."""

    def waited(self, operation: IssuedOperation) -> None:
        """It is complete: a wait has returned, or ``is_completed`` gave True."""

    def passed_on(self, operation: IssuedOperation) -> None:
        """The handle was given to a Future or to C++, where a wait for it is not seen."""

    def lost(self, operation: IssuedOperation) -> None:
        """The handle is gone without a wait, on whichever thread."""

    def ended(self) -> Any:
        """JSON-able data for the judge; None for none."""
