"""What was communicated, in order, and the questions that a test asks of it. Imports no torch."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from pytest_ddp.extensions.comms import UNLIKE_COMMUNICATION, UNUSABLE_BLOCK
from pytest_ddp.protocol.messages import coded
from pytest_ddp.rank.operations.table import TABLE

OBJECTS = frozenset(
    {
        *("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list"),
        *("send_object_list", "recv_object_list"),
    }
)
"""Collectives of pickled objects: each is one record, whatever it is made of. Their sizes vary with
what is pickled, and their tensors are where the backend has them."""
_KIB = 1024
_OPERATIONS = frozenset({form.operation for form in TABLE}) | OBJECTS
_FORMS = frozenset({form.name for form in TABLE})


@dataclass(frozen=True, slots=True)
class Record:
    """One operation of one rank. Two are equal if all but their lines, steps and modules are."""

    operation: str
    """The public name in ``torch.distributed`` that stands for all its forms: ``all_gather``."""
    form: str
    """The form that was called: ``all_gather_into_tensor``; ``functional.all_reduce`` for a
    functional collective, ``c++.all_reduce`` for what C++ issues by itself."""
    group: str
    """The mesh dimension, else the ``group_desc`` of its process group, else its members."""
    members: tuple[int, ...]
    """Global ranks of that group."""
    tensors: int
    """How many tensors are counted: several if calls were coalesced, or for lists."""
    elements: int | None
    """Elements of these tensors; None for objects, whose pickles vary in size."""
    dtype: str | None
    """torch's name, such as ``float32``; None where there is no tensor."""
    bytes: int | None
    """Bytes of all_gather's output, reduce_scatter's and all_to_all's input, else of the tensor; 0
    for a barrier, None for objects."""
    reduce_op: str | None
    """torch's name, such as ``SUM``; None where nothing is reduced, and with torch 2.8."""
    root: int | None
    """Source or destination of a collective, as rank in the group."""
    peer: int | None
    """The other end of a send or recv, as rank in the group; -1 for a recv from any."""
    is_async: bool
    """Whether the caller got a handle; of a functional collective a tensor that waits."""
    cpu_form: bool
    """Whether torch asks for something else where tensors are not on a CPU."""
    step: int = field(compare=False)
    """How many forward passes of the block's model had begun."""
    phase: str = field(compare=False)
    """``forward`` or ``backward`` of a module, or empty."""
    issued_in: str | None = field(compare=False)
    """Name of the module in whose forward or backward it was issued; None outside, or unknown."""
    belongs_to: str | tuple[str, ...] | None = field(compare=False)
    """Name of the module whose FSDP parameter group it serves, or the names of the parameters in
    DDP's bucket; None if unknown."""
    site: str = field(compare=False)
    """File and line of the user's code; empty where no Python runs."""
    group_name: str = field(compare=False)
    """torch's own name of the process group."""
    function: str = field(compare=False)
    """Name of the function that ``site`` is in."""


@dataclass(frozen=True, slots=True)
class Moment:
    """The begin of a module's forward or backward."""

    phase: str
    module: str
    step: int = field(default=0, compare=False)


Entry: TypeAlias = Record | Moment


class Communication:
    """Records in the order in which they were issued, and what follows from them."""

    def __init__(
        self, entries: Callable[[], Sequence[Entry]], groups: Callable[[object], str | None]
    ) -> None:
        self._entries = entries
        self._name_of = groups
        """torch's name of a group, a mesh or a label; None for a label of no group."""

    def __iter__(self) -> Iterator[Record]:
        return (entry for entry in self._entries() if isinstance(entry, Record))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Communication) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        counts = ", ".join(f"{name} {n}" for name, n in self.counts().items())
        objects = sum(record.bytes is None for record in self)
        size = "" if 0 < objects == len(self) else size_text(self.bytes)
        more = f"{objects} of unknown size" if objects else ""
        return f"<communication: {counts or 'none'}; {' and '.join(filter(None, (size, more)))}>"

    def counts(self, *, forms: bool = False) -> dict[str, int]:
        """How many operations, by name; with ``forms`` each form of one by itself."""
        return dict(Counter(record.form if forms else record.operation for record in self))

    @property
    def bytes(self) -> int:
        """Bytes of all operations but those of objects."""
        return sum(record.bytes or 0 for record in self)

    @property
    def cpu_forms(self) -> list[Record]:
        """Operations that torch asks for on a CPU only."""
        return [record for record in self if record.cpu_form]

    def on(self, group: object) -> Communication:
        """Operations on one group: a process group, a mesh of one dimension, or a group's label.

        Raises:
            ValueError: there is no such group; the text lists those that there are.
        """
        name = self._name_of(group)
        if name is None:
            return self._where(lambda record: record.group == group)
        return self._where(lambda record: record.group_name == name)

    def of(self, operation: str) -> Communication:
        """Records of one operation, or of one form of it.

        Raises:
            ValueError: there is no such operation; the text lists those that there are.
        """
        self._check(operation)
        return self._where(lambda record: operation in (record.operation, record.form))

    def by_module(self) -> dict[str, dict[str, int]]:
        """Counts by what they belong to, else by the module that issued them, else by ``""``."""
        found: dict[str, Counter[str]] = {}
        for record in self:
            found.setdefault(owner(record), Counter())[record.operation] += 1
        return {name: dict(counts) for name, counts in found.items()}

    def assert_before(
        self, first: str, then: str, *, belongs_to: str | None = None, module: str | None = None
    ) -> None:
        """Fail unless the first ``first`` comes before the first ``then``.

        Args:
            first: an operation.
            then: an operation, or ``forward`` or ``backward`` for the begin of a module's.
            belongs_to: the module whose operations are meant; None for all.
            module: whose forward or backward is meant; that of ``belongs_to`` if not given, and
                the model's own without either.

        Raises:
            ValueError: there is no such operation.
            AssertionError: it comes later, or one of them does not come at all.
        """
        __tracebackhide__ = True
        self._check(first)
        of_end = belongs_to
        if then in ("forward", "backward"):
            of_end = belongs_to or "" if module is None else module
        else:
            self._check(then)
        entries = self._entries()
        starts = [n for n, entry in enumerate(entries) if _is(entry, first, belongs_to)]
        ends = [n for n, entry in enumerate(entries) if _is(entry, then, of_end)]
        start, end = _named(first, belongs_to), _named(then, of_end)
        if not starts or not ends:
            words = f"ddp.comms: no {end if starts else start} in the block\n{self}"
            raise coded(AssertionError(words), UNLIKE_COMMUNICATION)
        if starts[0] > ends[0]:
            words = f"ddp.comms: {start} comes after {end}\n{self.table()}"
            raise coded(AssertionError(words), UNLIKE_COMMUNICATION)

    def table(self) -> str:
        """A row for each kind of operation, for people."""
        rows = Counter(map(_row, self))
        lines = [
            (*row, str(calls), "unknown" if size is None else size_text(size * calls))
            for (row, size), calls in rows.items()
        ]
        table = [_TITLES, *lines] if lines else []
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        marks = ["* torch asks for something else where tensors are not on a CPU"]
        return "\n".join(
            [
                *("  ".join(map(str.ljust, row, widths)).rstrip() for row in table),
                *(marks if self.cpu_forms else ()),
                repr(self),
            ]
        )

    def _where(self, holds: Callable[[Record], bool]) -> Communication:
        return Communication(lambda: [record for record in self if holds(record)], self._name_of)

    def _check(self, operation: str) -> None:
        if operation not in _OPERATIONS | _FORMS | {record.form for record in self}:
            known = textwrap.fill(", ".join(sorted(_OPERATIONS)), width=96)
            words = f"ddp.comms: no operation {operation!r}; the operations are\n{known}"
            raise coded(ValueError(words), UNUSABLE_BLOCK)


_TITLES = ("operation", "group", "dtype", "belongs to", "issued in", "at", "calls", "bytes")


def _row(record: Record) -> tuple[tuple[str, ...], int | None]:
    name = record.form + ("*" if record.cpu_form else "")
    if record.reduce_op not in (None, "SUM"):
        name += f" {record.reduce_op}"
    return (
        name,
        record.group,
        record.dtype or "-",
        shortened(record.belongs_to),
        shortened(record.issued_in),
        record.site.rpartition("/")[2] or "-",
    ), record.bytes


def owner(record: Record) -> str:
    """The module, or DDP's bucket, that a record is listed under."""
    if isinstance(record.belongs_to, tuple):
        return ", ".join(record.belongs_to)
    return record.issued_in or "" if record.belongs_to is None else record.belongs_to


def shortened(name: str | tuple[str, ...] | None) -> str:
    """A module's or bucket's name for a table."""
    if isinstance(name, tuple):
        return name[0] if len(name) == 1 else f"{name[0]} .. {name[-1]}"
    return "-" if name is None else name or "(model)"


def size_text(size: int) -> str:
    """Bytes for people: ``1.5 MiB``."""
    number = float(size)
    for unit in ("B", "KiB", "MiB"):
        if number < _KIB:
            return f"{number:.4g} {unit}"
        number /= _KIB
    return f"{number:.4g} GiB"


def _is(entry: Entry, name: str, module: str | None) -> bool:
    """Whether it is an operation with this name, of a module or of any, or that pass's begin."""
    if isinstance(entry, Moment):
        return (entry.phase, entry.module) == (name, module)
    return name in (entry.operation, entry.form) and module in (None, entry.belongs_to)


def _named(name: str, module: str | None) -> str:
    return name if module is None else f"{name} of {module or 'the model'}"
