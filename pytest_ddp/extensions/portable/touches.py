"""Operators of torch that read or write a buffer while an operation is in flight.

A ``TorchDispatchMode`` sees them, in the thread that issued the operation. It is there while
something is in flight, and only where no other mode is: modes are a stack, and a program that
leaves its own would remove this one instead. Compiled code passes it by.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from sys import _getframe
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch.utils import _python_dispatch as modes

from pytest_ddp.extensions.portable import watch
from pytest_ddp.extensions.portable.buffers import Buffers, each_tensor
from pytest_ddp.rank.groups import journal
from pytest_ddp.rank.groups.origins import user_frame
from pytest_ddp.system.stdlib import threading

IS_WATCHED = hasattr(modes.TorchDispatchMode, "ignore_compile_internals")
"""Whether torch.compile can be kept from noticing a mode: an older torch skips frames under one,
and raises with ``fullgraph=True``."""


def _top() -> Any:
    depth = torch._C._len_torch_dispatch_stack()
    return torch._C._get_dispatch_stack_at(depth - 1) if depth else None


_TORCH = str(torch.__file__).rpartition("/")[0] + "/"
_WAITING = frozenset({str(journal.__file__), str(watch.__file__)})
"""Files with the wrappers of ``Work.wait``, in which gloo calls operators for its results."""


class TouchMode(modes.TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Passes the tensors of each operator to the buffers in flight."""

    supports_higher_order_operators = True

    def __init__(self, buffers: Buffers) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._buffers = buffers

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def follow(self) -> None:
        """Be on this thread's stack of modes if it has something in flight, and else not.

        Called where torch's dispatcher is not on the call stack, as it restores what it set aside.
        """
        top = _top()
        wanted = IS_WATCHED and self._buffers.in_flight(threading.get_ident())
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
        for place, value in enumerate(args):
            self._see(func, accesses.of(place), value)
        for name, value in given.items():
            self._see(func, accesses.of(name), value)
        result = func(*args, **given)
        for value in accesses.raised(args, given):
            for tensor in each_tensor(value):
                if accesses.is_of_the_tensor or not tensor.numel():
                    self._buffers.wrote_nothing(tensor)
        return result

    def _see(self, func: Any, is_write: bool | None, value: Any) -> None:
        if is_write is None:
            return
        for tensor in each_tensor(value):
            if tensor.is_cpu:
                self._buffers.touched(tensor, str(func), is_write=is_write, site=_site)


class _Accesses(NamedTuple):
    """What an operator does with the memory of its arguments."""

    reads: bool = False
    """Whether it reads those that it does not write."""
    raises: frozenset[int | str] = frozenset()
    """Places and names of those whose version it raises: it writes them, or changes the tensor."""
    is_of_the_tensor: bool = False
    """Whether it changes the tensor, and neither reads nor writes its memory."""

    def of(self, place: int | str) -> bool | None:
        """Whether it writes an argument; None if it does not even read it."""
        if place in self.raises and not self.is_of_the_tensor:
            return True
        return False if self.reads else None

    def raised(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Any]:
        """The arguments whose version it raises."""
        yield from (value for place, value in enumerate(args) if place in self.raises)
        yield from (value for name, value in kwargs.items() if name in self.raises)


_BY_SHAPE = ("empty", "zeros", "ones", "full", "rand", "new_", "is_", "sym_", "_assert")
"""Begin the names of operators that only look at a tensor's shape."""
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
    return _Accesses(not is_view and not is_of_the_tensor, frozenset(written), is_of_the_tensor)


def _is_waiting() -> bool:
    frame: FrameType | None = _getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(_TORCH):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename in _WAITING


def _site() -> str:
    frame = user_frame(_getframe(1))
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
