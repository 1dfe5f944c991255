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

_NAMESPACE = "_c10d_functional"


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """The part of a tensor that the journal needs, for one that does not exist yet."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


Arguments: TypeAlias = Callable[..., tuple[Any, ...]]
"""Turns an operator's arguments into those of the matching method of ``ProcessGroup``."""


def _options(reduce_op: str | None = None, root: int | None = None) -> SimpleNamespace:
    op = None if reduce_op is None else getattr(dist.ReduceOp, reduce_op.upper(), None)
    return SimpleNamespace(reduceOp=op, rootRank=root)


def _share(tensor: torch.Tensor, members: int) -> PlannedTensor:
    rows, *rest = tensor.shape
    return PlannedTensor((rows // members, *rest), tensor.dtype)


def _all_to_all(
    source: torch.Tensor, out_rows: list[int], in_rows: list[int], _: str
) -> tuple[Any, ...]:
    output = PlannedTensor((sum(out_rows), *source.shape[1:]), source.dtype)
    return output, source, out_rows, in_rows, _options()


OPERATORS: dict[str, tuple[str, Arguments]] = {
    "all_reduce": ("all_reduce", lambda x, op, _: ([x], _options(op))),
    "all_reduce_coalesced": ("all_reduce_coalesced", lambda xs, op, _: (xs, _options(op))),
    "broadcast": ("broadcast", lambda x, root, _: ([x], _options(root=root))),
    "all_gather_into_tensor": (
        "all_gather_into_tensor",
        lambda x, members, _: (None, x, _options()),
    ),
    "all_gather_into_tensor_coalesced": (
        "all_gather_into_tensor_coalesced",
        lambda xs, members, _: (None, xs, _options()),
    ),
    "reduce_scatter_tensor": (
        "reduce_scatter_tensor",
        lambda x, op, members, _: (_share(x, members), x, _options(op)),
    ),
    "reduce_scatter_tensor_coalesced": (
        "reduce_scatter_tensor_coalesced",
        lambda xs, op, members, _: ([_share(x, members) for x in xs], xs, _options(op)),
    ),
    "all_to_all_single": ("all_to_all_single", _all_to_all),
}
"""By operator: the operation's public name and its arguments. The compiler prefers the in-place
forms, which take the same arguments."""


def watch(journal: CallJournal) -> None:
    """Record functional collectives in the journal; called once, for the life of the rank."""
    library = _Library(_NAMESPACE, "IMPL")
    for name, (operation, arguments) in OPERATORS.items():
        for form in (name, f"{name}_"):
            operator = getattr(getattr(torch.ops, _NAMESPACE), form, None)
            if operator is not None:  # missing in an older or newer torch
                note = journal.functional(operation)
                kernel = _kernel(operator.default, operation, note, arguments)
                library.impl(form, kernel, "BackendSelect", with_keyset=True)
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
    operator: Any, operation: str, note: Callable[..., Callable[[], None]], arguments: Arguments
) -> Callable[..., Any]:
    c10d: Any = dist.distributed_c10d
    below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)

    def kernel(keys: Any, *args: Any) -> Any:
        if not _is_real(args[0]):
            return operator.redispatch(keys & below, *args)
        group, given = c10d._resolve_process_group(args[-1]), arguments(*args)
        ends = [notice(group, operation, given) for notice in reversed(_notices)]
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
