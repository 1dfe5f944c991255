"""What touches a buffer in flight, or looks at a value that is unspecified: operators of torch.

A ``TorchDispatchMode`` sees them, in the thread that issued the operation. It is there while
something is in flight or unspecified, and only where no other mode is: modes are a stack, and a
program that leaves its own would remove this one instead. Compiled code passes it by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from sys import _getframe
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch.utils import _python_dispatch as modes

from pytest_ddp.extensions.portable.buffers import (
    READ_AND_WRITTEN,
    Buffers,
    Flight,
    Touch,
    touched_buffer,
    uses_of,
)
from pytest_ddp.extensions.portable.differences import ROWS, finding_of
from pytest_ddp.extensions.portable.finding import PortabilityFinding
from pytest_ddp.extensions.portable.issued import IssuedOperation
from pytest_ddp.extensions.portable.unspecified import Part, Unspecified
from pytest_ddp.rank.operations import methods
from pytest_ddp.rank.operations.operation import Given, each_tensor
from pytest_ddp.rank.operations.origins import is_of_torch, user_line
from pytest_ddp.system.stdlib import threading

IS_WATCHED = hasattr(modes.TorchDispatchMode, "ignore_compile_internals")
"""Whether torch.compile can be kept from noticing a mode: an older torch skips frames under one,
and raises with ``fullgraph=True``."""


def _top() -> Any:
    depth = torch._C._len_torch_dispatch_stack()
    return torch._C._get_dispatch_stack_at(depth - 1) if depth else None


_METHODS = str(methods.__file__)
"""The file of the wrappers of ``Work.wait``, in which gloo calls operators for its results."""


class TouchedBuffers:
    """What a rank does with buffers in flight and with what reduce leaves on other ranks."""

    def __init__(self) -> None:
        self._found: dict[tuple[Any, ...], PortabilityFinding] = {}
        self._buffers = Buffers(self._note)
        self._unspecified = Unspecified()
        self._mode = TouchMode(self._buffers, self._unspecified, self._note_look)
        self._issued: dict[int, Flight | None] = {}
        """What each thread has issued last; only that may have a handle that is to come."""
        self._reduce_operations: dict[IssuedOperation, list[torch.Tensor]] = {}
        """Tensors of reduce operations with another destination that are not complete."""

    def issued(self, operation: IssuedOperation, given: Given) -> None:
        """An operation is about to run."""
        if not operation.is_judged:
            return
        self._issued[operation.thread] = self._buffers.issued(operation, given)
        form, uses = operation.form.name, list(uses_of(operation, given.args))
        reads = [use.tensor for use in uses if not use.is_written or form in READ_AND_WRITTEN]
        part = next(filter(None, map(self._unspecified.part_of, reads)), None)
        if part is not None:
            self._note_look(part.operation, operation.site)
        self._unspecified.overwrite(use.tensor for use in uses if use.is_written)
        if form == "reduce" and not operation.is_root:
            self._reduce_operations[operation] = reads

    def received(self, operation: IssuedOperation) -> None:
        """Python code gets its handle."""
        flight = self._issued.pop(threading.get_ident(), None)
        if flight is not None and flight.operation is operation and operation.is_users:
            self._buffers.received(flight)
            self._mode.follow()
            flight.is_watched = self._mode.is_there

    def waited(self, operation: IssuedOperation) -> None:
        """It is complete."""
        self._buffers.waited(operation, user_line(_getframe(1)))
        self._unspecified.leave(self._reduce_operations.pop(operation, ()), operation)
        self._mode.follow()

    def passed_on(self, operation: IssuedOperation) -> None:
        """Its handle was given to where a wait for it is not seen."""
        self._buffers.passed_on(operation)
        self.dropped(operation)
        self._mode.follow()

    def dropped(self, operation: IssuedOperation) -> None:
        """Its handle is gone, on whichever thread."""
        self._reduce_operations.pop(operation, None)

    def findings(self) -> Iterable[PortabilityFinding]:
        """End it, and return what was found."""
        self._buffers.end()
        self._unspecified.clear()
        self._reduce_operations.clear()
        self._mode.follow()
        self._issued.clear()
        return self._found.values()

    def _note_look(self, operation: IssuedOperation, site: str) -> None:
        lines = (("reduced", operation.site), ("used", site))
        found = finding_of(ROWS["reduce elsewhere"], lines, operation.name)
        self._found.setdefault((operation.name, *lines), found)

    def _note(self, touch: Touch) -> None:
        key = touch.operation.name, touch.operation.site, touch.touched_by, touch.touched_at
        self._found.setdefault(key, touched_buffer(touch))


class TouchMode(modes.TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Passes the tensors of each operator to the buffers in flight and the unspecified values.

    Args:
        looked: is called with an operation that left a value and the line that looks at it.
    """

    supports_higher_order_operators = True

    def __init__(
        self,
        buffers: Buffers,
        unspecified: Unspecified,
        looked: Callable[[IssuedOperation, str], None],
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._buffers = buffers
        self._unspecified = unspecified
        self._looked = looked

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def follow(self) -> None:
        """Be on this thread's stack of modes if it has something to look for, and else not.

        Called where torch's dispatcher is not on the call stack, as it restores what it set aside.
        """
        top, thread = _top(), threading.get_ident()
        is_needed = self._buffers.in_flight(thread) or self._unspecified.follows(thread)
        wanted = IS_WATCHED and is_needed
        if isinstance(top, TouchMode) and (top is not self or not wanted):
            modes._pop_mode()
            top = _top()
        if wanted and top is None:
            # By the stack itself: the mode's own __enter__ sets flags of the whole process, which
            # only an __exit__ in the same order puts back.
            modes._push_mode(self)

    @property
    def is_there(self) -> bool:
        """Whether it sees the operators of this thread."""
        return _top() is self

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        if _is_waiting():
            return func(*args, **given)
        if any(one is not torch.Tensor for one in types):
            # A subclass of Tensor has no memory of its own. NotImplemented would show its inner
            # operators, and raise where the subclass does not take the operator itself.
            return func(*args, **given)
        accesses = _accesses(func)
        arguments: list[tuple[int | str, Any]] = [*enumerate(args), *given.items()]
        accessed = [(how, value) for at, value in arguments if (how := accesses.of(at)) is not None]
        for is_write, value in accessed:
            for tensor in each_tensor(value):
                self._buffers.touched(tensor, str(func), is_write=is_write)
        is_followed = accessed and not self._unspecified.is_empty
        lanes = list(_lanes(func, accesses, accessed)) if is_followed else []
        parts = [list(filter(None, map(self._unspecified.part_of, lane.reads))) for lane in lanes]
        result = func(*args, **given)
        for place, lane in enumerate(lanes):
            of_lane = result[place] if len(lanes) > 1 and result else result
            self._spread(accesses, lane, parts[place], list(each_tensor(of_lane)))
        for at, value in arguments:
            for tensor in each_tensor(value) if at in accesses.raises else ():
                if accesses.is_of_the_tensor or not tensor.numel():
                    self._buffers.wrote_nothing(tensor)
        return result

    def _spread(
        self,
        accesses: _Accesses,
        lane: _Lane,
        parts: Sequence[Part],
        results: Sequence[torch.Tensor],
    ) -> None:
        """Follow unspecified values from what an operator has read to what it has written."""
        if accesses.overwrites:
            self._unspecified.overwrite(lane.writes)
        written = [*lane.writes, *results]
        for part in parts:
            if not written:  # a number
                self._looked(part.operation, user_line(_getframe(1)))
            elif accesses.is_pointwise:
                for tensor in written:
                    self._unspecified.leave_in(tensor, part.bytes_of(tensor), part.operation)
            else:
                self._unspecified.leave(written, part.operation)


class _Lane(NamedTuple):
    """What an operator does with tensors whose values meet.

    An operator on lists (``_foreach_add_``) has one for each place of the lists.
    """

    reads: list[torch.Tensor]
    writes: list[torch.Tensor]


_ON_LISTS = ("_foreach_", "_fused_", "_amp_foreach_")
_OF_WHOLE_LISTS = ("_foreach_norm", "_foreach_max", "_foreach_powsum", "_amp_foreach_")
"""Operators that make one value of many."""
_POINTWISE = frozenset({"copy_", "_to_copy", "native_dropout"})
"""Pointwise operators without torch's tag for that."""


def _lanes(func: Any, accesses: _Accesses, accessed: Sequence[tuple[bool, Any]]) -> Iterator[_Lane]:
    if not func._opname.startswith(_ON_LISTS):
        yield _lane(accesses, accessed)
        return
    lists = [value for _, value in accessed if isinstance(value, list | tuple)]
    for place in range(max(map(len, lists), default=0)):
        each = [
            (how, value[place : place + 1] if isinstance(value, list | tuple) else value)
            for how, value in accessed
        ]
        yield _lane(accesses, each)


def _lane(accesses: _Accesses, accessed: Sequence[tuple[bool, Any]]) -> _Lane:
    reads = [one for _, value in accessed for one in each_tensor(value)]
    writes = [one for is_write, value in accessed if is_write for one in each_tensor(value)]
    if accesses.overwrites:
        reads = [one for one in reads if not any(one is other for other in writes)]
    return _Lane(reads, writes)


class _Accesses(NamedTuple):
    """What an operator does with the memory of its arguments."""

    reads: bool = False
    """Whether it reads those that it does not write."""
    raises: frozenset[int | str] = frozenset()
    """Places and names of those whose version it raises: it writes them, or changes the tensor."""
    is_of_the_tensor: bool = False
    """Whether it changes the tensor, and neither reads nor writes its memory."""
    overwrites: bool = False
    """Whether it does not read what it writes, and no old value is left there."""
    is_pointwise: bool = False
    """Whether each element that it writes comes from those at its place."""

    def of(self, place: int | str) -> bool | None:
        """Whether it writes an argument; None if it does not even read it."""
        if place in self.raises and not self.is_of_the_tensor:
            return True
        return False if self.reads else None


_BY_SHAPE = ("empty", "zeros", "ones", "full", "rand", "new_", "is_", "sym_", "_assert")
"""Beginnings of the names of operators that only look at a tensor's shape."""
_NO_MEMORY = frozenset(
    {"record_stream", "bernoulli", "_unsafe_view", "_has_same_storage_numel", "_version"}
)
"""Operators that take a shape, or make a view without saying so."""
_OF_THE_TENSOR = frozenset(
    {
        *("set_", "resize_", "resize_as_", "detach_", "as_strided_", "squeeze_", "unsqueeze_"),
        *("t_", "transpose_", "swapaxes_", "swapdims_", "rename_"),
    }
)


_OVERWRITES = frozenset(
    {
        *("fill_", "zero_", "copy_", "normal_", "uniform_", "random_", "exponential_"),
        *("log_normal_", "geometric_", "cauchy_", "bernoulli_"),
        # These write a part that depends on values: nothing is said of the rest.
        *("index_put_", "_index_put_impl_", "index_fill_", "index_copy_", "masked_fill_"),
        *("masked_scatter_", "scatter_", "put_", "fill_diagonal_"),
        *("_foreach_zero_", "_foreach_copy_"),
    }
)


@cache
def _accesses(func: Any) -> _Accesses:
    schema = getattr(func, "_schema", None)
    if schema is None or func.namespace in ("c10d", "_c10d_functional", "profiler"):
        return _Accesses()
    name = func._opname
    if name in _NO_MEMORY or name.startswith(_BY_SHAPE):
        return _Accesses()
    written: set[int | str] = set()
    for place, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            written |= {place, argument.name}
    # A view reads nothing.
    is_view = any(value.alias_info is not None for value in schema.returns) and not written
    is_of_the_tensor = name in _OF_THE_TENSOR
    # Written arguments that come by name alone are the results of an ``out=`` form.
    overwrites = name in _OVERWRITES or any(
        argument.kwarg_only for argument in schema.arguments if argument.name in written
    )
    is_pointwise = torch.Tag.pointwise in func.tags or name in _POINTWISE
    if name.startswith(_ON_LISTS):
        is_pointwise = not name.startswith(_OF_WHOLE_LISTS)
    reads = not is_view and not is_of_the_tensor
    return _Accesses(reads, frozenset(written), is_of_the_tensor, overwrites, is_pointwise)


def _is_waiting() -> bool:
    frame: FrameType | None = _getframe(2)
    while frame is not None and is_of_torch(frame):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename == _METHODS
