"""Buffers that are touched while an operation is in flight: NCCL reads and writes them later.

An operation is in flight from its issue until user code has waited for it, or for a later one of
its group: NCCL runs the operations of a group in order, and a wait makes the current stream wait
for that order. For the same reason two operations of one group never touch each other's buffers.

What is proved:

- a change of an input that is only read: by checksums at issue and at completion,
- a write to any other buffer that is its whole storage: by ``Tensor._version``, which views of one
  storage share, so that elsewhere it says nothing; nor does it where gloo raises it by itself,
- a read of an output, or a write to anything: by operators that the watch of
  :mod:`~pytest_ddp.extensions.portable.touches` sees, and operations on other groups, whose
  bytes overlap.

Operations whose handle the user's code does not get are not judged, since waits for those are not
seen. Tensors that are not on a CPU are not judged either, as streams may order what the program
does with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from sys import _getframe
from typing import Any, NamedTuple

import torch

from pytest_ddp.extensions.comms.block import reduction_of
from pytest_ddp.extensions.portable.extents import Extent, checksum_of, extent_of, overlap
from pytest_ddp.extensions.portable.finding import FindingKind, PortabilityFinding
from pytest_ddp.extensions.portable.issued import Group, IssuedOperation
from pytest_ddp.rank.operations.operation import Given, each_tensor
from pytest_ddp.rank.operations.origins import user_line
from pytest_ddp.rank.operations.table import TABLE
from pytest_ddp.system.stdlib import threading


class Touch(NamedTuple):
    """A buffer that was touched while an operation was in flight."""

    operation: IssuedOperation
    """The operation that was in flight."""
    is_write: bool
    touched_by: str
    """What touched it: an operator or an operation; empty if only the change was seen."""
    touched_at: str
    """The user's line that touched it; of a change, the line that waited."""


_WRITTEN_BELOW_TORCH = frozenset({"all_reduce", "broadcast", "reduce", "recv"})
"""Forms whose results gloo writes without an operator of torch, which would raise the version. For
an average it calls one."""


@dataclass(slots=True)
class Use:
    """A tensor of an operation."""

    tensor: torch.Tensor
    """The tensor itself: without it its addresses would be used again."""
    extent: Extent
    is_written: bool
    checksum: int | None = None
    version: int | None = None

    @property
    def is_there(self) -> bool:
        """Whether the tensor still has its memory: a storage may be resized, or another one set."""
        return self.tensor.data_ptr() == self.extent[0][0]

    def meets(self, other: Extent, *, is_write: bool) -> bool:
        """Whether a read or write of other bytes is one of these, and more than reading twice."""
        return (is_write or self.is_written) and overlap(self.extent, other) and self.is_there


@dataclass(eq=False, slots=True)
class Flight:
    """An operation whose buffers belong to the backend."""

    operation: IssuedOperation
    uses: list[Use]
    is_found: bool = False
    is_watched: bool = False
    """Whether operators that raise a version and write nothing are noticed."""


class Buffers:
    """The operations in flight on this rank, and what touched their buffers.

    Args:
        found: is called with each touch, once for each operation in flight.
    """

    def __init__(self, found: Callable[[Touch], None]) -> None:
        self._found = found
        self._flights: list[Flight] = []
        """Operations in flight, in the order of their issue."""
        self._lock = threading.RLock()

    def issued(self, operation: IssuedOperation, given: Given) -> Flight | None:
        """Note an operation before it runs.

        Returns:
            what is in flight from now on, for :meth:`received`; None for an operation without
            buffers, or one that ends before its caller goes on.
        """
        is_async = given.get("async_op", True)
        if not is_async and not self._flights:
            return None
        uses = list(uses_of(operation, given.args))
        with self._lock:
            self._compare(operation, uses, is_waited=not is_async)
            if not is_async or not uses:
                return None
            _remember(uses, operation.form.name, reduction_of(given.get("reduce_op")))
            return Flight(operation, uses)

    def received(self, flight: Flight) -> None:
        """The user's code gets the handle, and has to wait from now on."""
        with self._lock:
            self._flights.append(flight)

    def waited(self, operation: IssuedOperation, site: str) -> None:
        """A wait for an operation has returned."""
        with self._lock:
            for place, flight in enumerate(self._flights):
                if flight.operation is operation:
                    self._land(flight.operation.group, place + 1, site)
                    return

    def passed_on(self, operation: IssuedOperation) -> None:
        """A wait by the new owner is not seen, so the operation is not judged any more."""
        with self._lock:
            self._flights = [one for one in self._flights if one.operation is not operation]

    def end(self) -> None:
        """Judge what is still in flight when the test ends."""
        with self._lock:
            flights, self._flights = self._flights, []
            for flight in flights:
                self._judge(flight, "")

    def in_flight(self, thread: int) -> bool:
        """Whether something is in flight that this thread issued."""
        return any(flight.operation.thread == thread for flight in self._flights)

    def touched(self, tensor: torch.Tensor, operator: str, *, is_write: bool) -> None:
        """An operator of torch is about to read or write a tensor, in this thread."""
        with self._lock:
            if not self._flights or (extent := extent_of(tensor)) is None:
                return
            for flight in self._flights:
                hit = any(use.meets(extent, is_write=is_write) for use in flight.uses)
                if hit and not flight.is_found:
                    self._tell(flight, operator, user_line(_getframe(1)), is_write=is_write)

    def wrote_nothing(self, tensor: torch.Tensor) -> None:
        """A write to an empty tensor raises the version of its storage, some time later."""
        if tensor.layout != torch.strided:  # it has no storage
            return
        storage = tensor.untyped_storage()._cdata
        with self._lock:
            for flight in self._flights:
                for use in flight.uses:
                    if use.tensor.untyped_storage()._cdata == storage:
                        use.version = None

    def _compare(self, operation: IssuedOperation, uses: list[Use], *, is_waited: bool) -> None:
        """Look for flights whose buffers an operation uses."""
        ordered = 0
        for place, flight in enumerate(self._flights):
            touches = [
                use.is_written
                for use in uses
                for theirs in flight.uses
                if theirs.meets(use.extent, is_write=use.is_written)
            ]
            if flight.operation.group == operation.group:
                ordered = place + 1 if touches or is_waited else ordered
            elif touches and not flight.is_found:
                self._tell(flight, operation.name, operation.site, is_write=any(touches))
        if ordered:
            self._land(operation.group, ordered, operation.site)

    def _land(self, group: Group, before: int, site: str) -> None:
        """End the flights of a group among the first ones."""
        ended = [flight for flight in self._flights[:before] if flight.operation.group == group]
        self._flights = [flight for flight in self._flights if flight not in ended]
        for flight in ended:
            self._judge(flight, site)

    def _judge(self, flight: Flight, site: str) -> None:
        if not flight.is_found and any(_is_changed(use, flight) for use in flight.uses):
            self._tell(flight, "", site, is_write=True)

    def _tell(self, flight: Flight, by: str, site: str, *, is_write: bool) -> None:
        flight.is_found = True
        self._found(Touch(flight.operation, is_write, by, site))


READ_AND_WRITTEN = frozenset(form.name for form in TABLE if form.reduces and not form.reads)
"""Forms that read what they write."""


def uses_of(operation: IssuedOperation, args: tuple[Any, ...]) -> Iterator[Use]:
    """The tensors of an operation on a CPU, with what it does with them."""
    form = operation.form
    reads, writes = form.reads, form.writes
    # The tensor of a broadcast or a reduce is read on one side and written on the other. gloo uses
    # those of other ranks than the root of a reduce to compute in; NCCL reads them.
    if form.rooted and not reads and operation.is_root is (form.name == "broadcast"):
        reads, writes = writes, reads
    for places, is_written in ((reads, False), (writes, True)):
        for place in places:
            for tensor in each_tensor(args[place]):
                if extent := extent_of(tensor):
                    yield Use(tensor, extent, is_written)


def _remember(uses: list[Use], form: str, reduce_op: str | None) -> None:
    """Note the state of buffers, where a change of it can be proved later."""
    by_version = form in _WRITTEN_BELOW_TORCH and reduce_op != "AVG"
    for use in uses:
        tensor = use.tensor
        # In place, as FSDP gathers and gloo reduces: the operation writes what it reads.
        in_place = any(other.is_written and overlap(other.extent, use.extent) for other in uses)
        if form != "reduce" and not in_place:
            use.checksum = checksum_of(use.extent)
        elif by_version and tensor.nbytes == tensor.untyped_storage().nbytes():
            use.version = None if tensor.is_inference() else tensor._version


def _is_changed(use: Use, flight: Flight) -> bool:
    if not use.is_there:
        return False
    if use.checksum is not None:
        return checksum_of(use.extent) != use.checksum
    return flight.is_watched and use.version is not None and use.tensor._version != use.version


def touched_buffer(touch: Touch) -> PortabilityFinding:
    """The finding for a buffer that was touched in flight."""
    verb, name = "writes" if touch.is_write else "reads", touch.operation.name
    if touch.touched_by:
        what = f"{touch.touched_by} {verb} a tensor of {name} before a wait for it"
    else:
        what = f"a tensor of {name} is written before a wait for it"
        verb = "written before" if touch.touched_at else "written by the end"
    return PortabilityFinding(
        FindingKind.TOUCHED_BUFFER,
        what,
        (("issued", touch.operation.site), (verb, touch.touched_at)),
        "On NCCL an operation that was issued runs at any time until a wait for it, or for a later "
        "one of its group: the values may be those of before or after, or a mixture.",
        "wait for the operation before its tensor is used, or give it a copy.",
    )
