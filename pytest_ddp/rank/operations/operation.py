"""The record of what a rank issues. What crosses to the pytest process is made of it."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.distributed as dist

from pytest_ddp.protocol.rank_status import CodeLine
from pytest_ddp.rank.operations.table import Form

Piece: TypeAlias = tuple[tuple[int, torch.dtype], ...]
"""What one rank sends to another: elements and dtype of each tensor, several if coalesced."""

KEPT = 2048
"""How many operations are kept to explain a failure; counters and digests cover all of them."""


class Site(NamedTuple):
    """A place in the user's code."""

    code: CodeType
    line: int

    @property
    def code_line(self) -> CodeLine:
        """The place without the code object, for other processes."""
        return CodeLine(self.code.co_filename, self.line)

    def __str__(self) -> str:
        return f"{self.code.co_filename}:{self.line}"


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """The size of a tensor that does not exist yet."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor's elements."""
        return self.numel() * self.dtype.itemsize


class Issuer(enum.Enum):
    """What has issued an operation."""

    PYTHON = "a method of ProcessGroup"
    FUNCTIONAL = "a functional collective"
    CPP = "C++, without either"
    FIXTURE = "the ddp fixture"


class Description(NamedTuple):
    """What operations with the same arguments from the same place have in common.

    A loop repeats it: a look-up takes a third of the time of making it anew.
    """

    form: Form
    called: str
    """torch's name of the method or operator."""
    numel: int | None = None
    """Elements of the tensor, where they must be the same on all ranks."""
    dtype: torch.dtype | None = None
    reduce_op: str | None = None
    root: int | None = None
    """Source or destination in the group of a collective; the peer of a message, -1 for any."""
    tag: int | None = None
    site: Site | None = None
    """The line of the user's code; None where C++ has issued it."""
    sends: tuple[Piece, ...] = ()
    """What each member gets, in group order; a single entry if all get the same, and for a send.
    Empty for operations that are not made of pieces."""
    receives: tuple[Piece, ...] = ()
    """What is expected of each member, in the form of ``sends``."""
    what: int = 0
    """Digest of what must be the same on all ranks."""
    where: int = 0
    """Digest of the line, and of sizes that may legally differ."""


class Given(NamedTuple):
    """The arguments that an operation is issued with."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    names: Mapping[str, int]
    """Places of an operator's arguments, by torch's names; empty for those of a method."""

    def get(self, name: str, default: Any = None) -> Any:
        """An argument of an operator; a call may leave out the last ones."""
        place = self.names.get(name)
        return default if place is None or place >= len(self.args) else self.args[place]


new_named = tuple.__new__
"""A named tuple's own constructor takes longer."""


class Operation:
    """A collective, a send, a receive or an exchange of the ``ddp`` fixture that a rank issues.

    It is the same object from its issue to the last event. ``process_group``, ``given`` and what
    follows from them are there until the issue has returned: kept, they would lengthen the lives of
    tensors and groups.
    """

    __slots__ = (
        *("described", "given", "group", "is_waited", "issuer", "limit", "message_number"),
        *("number", "process_group", "callees", "__weakref__"),
    )

    def __init__(
        self, process_group: Any, group: str, described: Description, issuer: Issuer
    ) -> None:
        self.process_group = process_group
        self.group = group
        """torch's name of the process group; empty for the ``ddp`` fixture."""
        self.described = described
        self.issuer = issuer
        self.number = 0
        """Number of the collective on its group since that was made, from 1; 0 for a message, for
        what C++ issues, and where the backend has no numbers."""
        self.message_number = 0
        """Number of the message among those of the test with its direction, peer and tag, from 1; 0
        for a collective."""
        self.limit: float | None = None
        """Timeout in seconds that the caller has passed to ``wait``."""
        self.is_waited = False
        """Whether something has waited for the operation's ``Work``, or taken the wait over."""
        self.callees: tuple[Any, ...] = ()
        """The subscribers that were called at the operation's operator."""
        self.given: Given | None = None
        """The arguments, for subscribers; those of the operator, by name, where they are needed."""

    @property
    def form(self) -> Form:
        """The operation's row in :mod:`pytest_ddp.rank.operations.table`."""
        return self.described.form

    @property
    def name(self) -> str:
        """The public name of the operation's form."""
        return self.described.form.name

    @property
    def called(self) -> str:
        """torch's name of the method or operator."""
        return self.described.called

    @property
    def numel(self) -> int | None:
        """``numel`` of :class:`Description`; the next properties have its other fields."""
        return self.described.numel

    @property
    def dtype(self) -> torch.dtype | None:
        return self.described.dtype

    @property
    def reduce_op(self) -> str | None:
        return self.described.reduce_op

    @property
    def root(self) -> int | None:
        return self.described.root

    @property
    def tag(self) -> int | None:
        return self.described.tag

    @property
    def site(self) -> Site | None:
        return self.described.site

    @property
    def code_line(self) -> CodeLine | None:
        """The place without the code object, for other processes."""
        site = self.described.site
        return None if site is None else site.code_line

    @property
    def sends(self) -> tuple[Piece, ...]:
        return self.described.sends

    @property
    def receives(self) -> tuple[Piece, ...]:
        return self.described.receives

    @property
    def tensors(self) -> tuple[Any, ...]:
        """The tensors that are counted: the output of an all_gather, the input of a reduce_scatter
        and an all_to_all, else the tensor. Empty once the issue has returned. A result that does
        not exist yet is a :class:`PlannedTensor`."""
        place = self.form.counted
        if self.given is None or place is None or len(self.given.args) <= place:
            return ()
        value = self.given.args[place]
        if isinstance(value, torch.Tensor):
            return (value,)
        if value and isinstance(value, list) and isinstance(value[0], torch.Tensor):
            return tuple(value)
        return tuple(each_tensor(value))

    @property
    def nbytes(self) -> int:
        """Bytes of these tensors."""
        return sum(tensor.nbytes for tensor in self.tensors)


def each_tensor(value: Any) -> Iterator[Any]:
    """The tensors of an argument, in lists of any depth."""
    if isinstance(value, torch.Tensor | PlannedTensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from each_tensor(one)


def name_of(group: Any) -> str:
    """A group's name; for a backend in Python, the name that torch has registered."""
    try:
        name: str = group.group_name
    except RuntimeError:
        name = dist.distributed_c10d._world.pg_names.get(group, "")
    return name
