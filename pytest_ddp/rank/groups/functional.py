"""Records functional collectives, which C++ issues without the methods of ``ProcessGroup``.

A kernel for the dispatch key BackendSelect sees every call of their operators, including those
from compiled code, with the group's name and on the calling thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, TypeAlias

import torch
import torch.distributed as dist

from pytest_ddp.rank.groups.journal import CallJournal
from pytest_ddp.rank.operations.table import BY_FUNCTIONAL, Form

_NAMESPACE = "_c10d_functional"


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """The part of a tensor that the journal needs, for one that does not exist yet."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def _method_arguments(form: Form, names: tuple[str, ...], args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of the matching method of ``ProcessGroup``."""
    given = dict(zip(names, args, strict=False))
    source: Any = given.get("input", given.get("inputs"))
    options = _options(given.get("reduce_op"), given.get("src"))
    match form.operation:
        case "all_gather":
            return None, source, options
        case "reduce_scatter":
            members = given["group_size"]
            if isinstance(source, list):
                return [_share(tensor, members) for tensor in source], source, options
            return _share(source, members), source, options
        case "all_to_all":
            out_rows, in_rows = given["output_split_sizes"], given["input_split_sizes"]
            output = PlannedTensor((sum(out_rows), *source.shape[1:]), source.dtype)
            return output, source, out_rows, in_rows, options
    return source if isinstance(source, list) else [source], options


def _options(reduce_op: str | None, root: int | None) -> SimpleNamespace:
    op = None if reduce_op is None else getattr(dist.ReduceOp, reduce_op.upper(), None)
    return SimpleNamespace(reduceOp=op, rootRank=root)


def _share(tensor: torch.Tensor, members: int) -> PlannedTensor:
    rows, *rest = tensor.shape
    return PlannedTensor((rows // members, *rest), tensor.dtype)


def watch(journal: CallJournal) -> None:
    """Record functional collectives in the journal; called once, for the life of the rank."""
    library = _Library(_NAMESPACE, "IMPL")
    for name, form in BY_FUNCTIONAL.items():
        operator = getattr(getattr(torch.ops, _NAMESPACE), name, None)
        if operator is not None:  # missing in an older or newer torch
            kernel = _kernel(operator.default, form, journal.functional(form))
            library.impl(name, kernel, "BackendSelect", with_keyset=True)
    _kept.append(library)


_Library: Any = torch.library.Library  # untyped
_kept: list[Any] = []
"""Keeps the library alive: its kernels are removed when it is freed."""


Notice: TypeAlias = Callable[[dist.ProcessGroup, str, tuple[Any, ...]], Callable[[], None]]
"""Is called before a functional collective, with its group, public name and arguments, as those of
the matching method of ``ProcessGroup``; returns what to call when it has been issued."""

_notices: tuple[Notice, ...] = ()


@contextmanager
def observed(notice: Notice) -> Iterator[None]:
    """Call ``notice`` before each functional collective of the block.

    What it raises is raised in place of the collective.
    """
    global _notices
    _notices = (*_notices, notice)
    try:
        yield
    finally:
        _notices = tuple(other for other in _notices if other is not notice)


def _kernel(
    operator: Any, form: Form, note: Callable[..., Callable[[], None]]
) -> Callable[..., Any]:
    names = tuple(argument.name for argument in operator._schema.arguments)
    c10d: Any = dist.distributed_c10d
    below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)

    def kernel(keys: Any, *args: Any) -> Any:
        if not _is_real(args[0]):
            return operator.redispatch(keys & below, *args)
        group = c10d._resolve_process_group(args[-1])
        given = _method_arguments(form, names, args)
        ends = [notice(group, form.name, given) for notice in reversed(_notices)]
        issued = note(group, given)
        result = operator.redispatch(keys & below, *args)
        issued()
        for ended in ends:
            ended()
        return result

    return kernel


def _is_real(tensors: Any) -> bool:
    """False for a compiler's fake tensors, which are not sent."""
    several = tensors if isinstance(tensors, list) else [tensors]
    return all(type(tensor) is torch.Tensor for tensor in several) and not several[0].is_meta
