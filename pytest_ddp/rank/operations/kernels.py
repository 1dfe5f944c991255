"""Kernels of torch's communication operators, for what the methods do not see.

A kernel under the dispatch key BackendSelect is passed by each call: from Python and from C++, in
any thread, in inference mode and in compiled code, with the user's frames on the stack. Under
FakeTensorMode it is not reached, where nothing is sent either.

Those of functional collectives are always there. Those of ``c10d`` are there while a subscriber
needs them. Measured with torch 2.13 on two busy cores: 4 to 19 ms to install, 0.05 ms to remove,
and a kernel that does nothing adds 9 to 18 microseconds to an all_reduce that takes 17 to 26, which
each test that communicates would pay.

They do not see a backend that is called directly (``group._get_backend(device).allreduce``), nor
process groups written in Python, but for what they call inside, nor symmetric memory, nor replays
of CUDA graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from pytest_ddp.rank.operations.operation import (
    Description,
    Given,
    Issuer,
    Operation,
    PlannedTensor,
    new_named,
)
from pytest_ddp.rank.operations.stream import Operations
from pytest_ddp.rank.operations.table import BY_FUNCTIONAL, BY_OPERATOR, NO_OPERATIONS, Form

_SPACE = "c10d::"
_FUNCTIONAL = "_c10d_functional"
_Library: Any = torch.library.Library  # untyped
_kept: list[Any] = []
"""Keeps a library alive: its kernels are removed when it is freed."""


def _below() -> Any:
    return torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)


# ------------------------------------------------------------------ functional collectives


def watch_functional(operations: Operations) -> None:
    """Announce functional collectives from now on, for the life of the process."""
    library = _Library(_FUNCTIONAL, "IMPL")
    for name, form in BY_FUNCTIONAL.items():
        operator = getattr(getattr(torch.ops, _FUNCTIONAL), name, None)
        if operator is not None:  # missing in an older or newer torch
            kernel = _functional_kernel(operations, operator.default, form)
            library.impl(name, kernel, "BackendSelect", with_keyset=True)
    _kept.append(library)


def _functional_kernel(operations: Operations, operator: Any, form: Form) -> Callable[..., Any]:
    c10d: Any = dist.distributed_c10d
    below, redispatch = _below(), operator.redispatch
    schema = operator._schema.arguments
    read = _method_arguments(form, {one.name: place for place, one in enumerate(schema)})
    describe = operations.describer.of(form, form.methods[0], Issuer.FUNCTIONAL)

    def kernel(keys: Any, *args: Any) -> Any:
        if not _is_real(args[0]):
            return redispatch(keys & below, *args)
        group, given = c10d._resolve_process_group(args[-1]), read(args)
        operation = describe(group, given, {})
        if operations.is_watched and not operations.local.is_announcing:
            arguments = Given(given, {}, {})
            return operations.run(operation, arguments, redispatch, (keys & below, *args), {})
        recorder = operations.recorder
        recorder.before(operation)
        try:
            result = redispatch(keys & below, *args)
        except BaseException as error:
            recorder.returned(operation, error)
            operation.process_group = None
            raise
        recorder.returned(operation, None)
        operation.process_group = None
        return result

    return kernel


def _is_real(tensors: Any) -> bool:
    """False for a compiler's fake tensors, which are not sent."""
    several = tensors if isinstance(tensors, list) else [tensors]
    return all(type(tensor) is torch.Tensor for tensor in several) and not several[0].is_meta


def _method_arguments(
    form: Form, names: Mapping[str, int]
) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """What makes the arguments of the matching method of ``ProcessGroup``."""
    reduce_op, root = names.get("reduce_op"), names.get("src")

    def options(args: tuple[Any, ...]) -> SimpleNamespace:
        op = None if reduce_op is None else getattr(dist.ReduceOp, args[reduce_op].upper(), None)
        return SimpleNamespace(reduceOp=op, rootRank=None if root is None else args[root])

    def in_place(args: tuple[Any, ...]) -> tuple[Any, ...]:
        source = args[0]
        return source if isinstance(source, list) else [source], options(args)

    def of_rows(args: tuple[Any, ...]) -> tuple[Any, ...]:
        source, members = args[0], args[names["group_size"]]
        if isinstance(source, list):
            return [planned(tensor, members) for tensor in source], source, options(args)
        return planned(source, members), source, options(args)

    def split(args: tuple[Any, ...]) -> tuple[Any, ...]:
        source, out_rows, in_rows = args[:3]
        output = PlannedTensor((sum(out_rows), *source.shape[1:]), source.dtype)
        return output, source, out_rows, in_rows, options(args)

    planned = _together if form.operation == "all_gather" else _share
    if "group_size" in names:
        return of_rows
    return split if "output_split_sizes" in names else in_place


def _share(tensor: torch.Tensor, members: int) -> PlannedTensor:
    rows, *rest = tensor.shape
    return PlannedTensor((rows // members, *rest), tensor.dtype)


def _together(tensor: torch.Tensor, members: int) -> PlannedTensor:
    return PlannedTensor((members, *tensor.shape), tensor.dtype)


# ------------------------------------------------------------------ operators


def watch_operators(operations: Operations) -> Callable[[], None]:
    """Announce operators, until what is returned is called.

    torch takes one kernel for each operator and key.
    """
    library = _Library("c10d", "IMPL")
    for full in torch._C._dispatch_get_all_op_names():
        name, _, overload = full.removeprefix(_SPACE).partition(".")
        if not full.startswith(_SPACE) or name in NO_OPERATIONS:
            continue
        operator = getattr(getattr(torch.ops.c10d, name), overload or "default")
        # One that a newer torch adds is announced by torch's own name for it.
        plain = name.strip("_")
        form = BY_OPERATOR.get(name) or Form(plain, plain, (), ())
        names = {argument.name: place for place, argument in enumerate(operator._schema.arguments)}
        if "process_group" in names:
            kernel = _operator_kernel(operations, operator, form, names)
            library.impl(full.removeprefix(_SPACE), kernel, "BackendSelect", with_keyset=True)
    end: Callable[[], None] = library._destroy
    return end


def _operator_kernel(
    operations: Operations, operator: Any, form: Form, names: dict[str, int]
) -> Callable[..., Any]:
    below, redispatch, local = _below(), operator.redispatch, operations.local
    described, counted = Description(form, operator._opname), form.counted
    group_at = names["process_group"]
    unbox: Any = dist.ProcessGroup.unbox

    def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
        operation = local.operation
        is_known = operation is not None
        whom = operations.at_operator if is_known else operations.at_cpp
        if not whom or local.is_announcing or (operation is not None and operation.callees):
            return redispatch(keys & below, *args, **kwargs)
        first = None if counted is None else args[counted]
        while isinstance(first, list):
            first = first[0] if first else None
        if first is not None and first.is_meta:  # nothing is sent
            return redispatch(keys & below, *args, **kwargs)
        if operation is None:
            group = unbox(args[group_at])
            operation = Operation(group, group.group_name, described, Issuer.CPP)
        operation.given = new_named(Given, (args, kwargs, names))
        called = operations.announce(operation, whom)
        if is_known:
            operation.callees = called
            # Kept nowhere, as it would lengthen the life of a Work.
            return redispatch(keys & below, *args, **kwargs)
        try:
            result = redispatch(keys & below, *args, **kwargs)
        except BaseException as error:
            operations.announce_return(operation, called, None, error)
            raise
        operations.announce_return(operation, called, None, None)
        return result

    return kernel
