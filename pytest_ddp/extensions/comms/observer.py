"""Sees each operator of torch's namespace ``c10d`` when it is called: what libraries ask for.

A kernel under the dispatch key BackendSelect is passed by each call: from Python and from C++, in
any thread, in inference mode and in compiled code, with the user's frames on the stack. Under
FakeTensorMode it is not reached, where nothing is sent either.

It is there while something observes, and not always. Measured with torch 2.13 on two busy cores: 4
to 19 ms to install, 0.05 ms to remove, and a kernel that does nothing adds 9 to 18 microseconds to
an all_reduce that takes 17 to 26, which each test that communicates would pay. So the journal
(:mod:`pytest_ddp.rank.groups.journal`) stays for what the core needs.

It does not see a backend that is called directly (``group._get_backend(device).allreduce``): the
block compares the sequence numbers of groups for that. Nor does it see process groups written in
Python, but for what they call inside, symmetric memory, and replays of CUDA graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist

from pytest_ddp.rank.operations.table import BY_OPERATOR, NO_OPERATIONS, Form

_SPACE = "c10d::"
_Library: Any = torch.library.Library  # which has no types


class Arguments(NamedTuple):
    """Where an operator has its arguments; None for one that it does not have.

    A call may leave out the last ones.
    """

    process_group: int
    sized: int | None
    reduce_op: int | None
    root: int | None
    peer: int | None
    async_op: int | None
    names: Mapping[str, int]
    """All arguments, by torch's names."""


class OperatorCall(NamedTuple):
    """An operator that is called, and sends something."""

    form: Form
    places: Arguments
    args: tuple[Any, ...]
    tensors: tuple[torch.Tensor, ...]
    """Those that count for what is sent; empty for an operator without one."""
    group: Any
    """The process group, not boxed."""


class Notice(Protocol):
    """Is called on the thread that communicates, before each operator."""

    def __call__(self, call: OperatorCall, /) -> Callable[[], None] | None:
        """Return what to call afterwards, also if the operator raises; None for nothing."""


_notices: tuple[Notice, ...] = ()
_library: Any = None


def observe(notice: Notice) -> Callable[[], None]:
    """Call ``notice`` before each operator, until the function that is returned is called.

    The first one installs the kernels and the last one removes them: torch takes one kernel for
    each operator and key.
    """
    global _notices, _library
    _notices = (*_notices, notice)
    if _library is None:
        _library = _installed()
    return partial(_end, notice)


def _end(notice: Notice) -> None:
    global _notices, _library
    _notices = tuple(other for other in _notices if other is not notice)
    if not _notices and _library is not None:
        _library._destroy()
        _library = None


def _installed() -> Any:
    library = _Library("c10d", "IMPL")
    for full in torch._C._dispatch_get_all_op_names():
        name, _, overload = full.removeprefix(_SPACE).partition(".")
        if not full.startswith(_SPACE) or name in NO_OPERATIONS:
            continue
        operator = getattr(getattr(torch.ops.c10d, name), overload or "default")
        # One that a newer torch adds is counted by torch's own name for it.
        known = BY_OPERATOR.get(name) or _unknown(name.strip("_"))
        places = _places(operator, known)
        if places is not None:
            kernel = _kernel(operator, known, places)
            library.impl(full.removeprefix(_SPACE), kernel, "BackendSelect", with_keyset=True)
    return library


def _unknown(name: str) -> Form:
    return Form(name, name, (), ())


def _places(operator: Any, known: Form) -> Arguments | None:
    names = {argument.name: place for place, argument in enumerate(operator._schema.arguments)}
    if "process_group" not in names:
        return None
    return Arguments(
        names["process_group"],
        names.get(known.counted),
        names.get("reduce_op"),
        names.get("root_rank"),
        names.get("dst", names.get("src")),
        names.get("async_op"),
        names,
    )


def _kernel(operator: Any, known: Form, places: Arguments) -> Callable[..., Any]:
    below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
    redispatch = operator.redispatch

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        tensors = () if places.sized is None else _tensors_of(args[places.sized])
        if tensors and tensors[0].is_meta:  # nothing is sent
            return redispatch(keys & below, *args, **kwargs)
        group = dist.ProcessGroup.unbox(args[places.process_group])
        call = _new_call(OperatorCall, (known, places, args, tensors, group))
        ends = []
        for notice in _notices:  # no comprehension: they count the frames above them
            ends.append(notice(call))
        try:
            # Kept nowhere, as it would lengthen the life of a Work.
            return redispatch(keys & below, *args, **kwargs)
        finally:
            for ended in ends:
                if ended is not None:
                    ended()

    return kernel


_new_call = tuple.__new__
"""A named tuple's own constructor takes longer."""


def _tensors_of(value: Any) -> tuple[torch.Tensor, ...]:
    if isinstance(value, torch.Tensor):
        return (value,)
    if value and not isinstance(value[0], torch.Tensor):
        return tuple(tensor for inner in value for tensor in inner)
    return tuple(value)
