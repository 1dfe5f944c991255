"""Records functional collectives, which C++ issues without the methods of ``ProcessGroup``.

A kernel for the dispatch key BackendSelect sees every call of their operators, including those
from compiled code, with the group's name and on the calling thread.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.distributed as dist

from pytest_ddp.rank.groups.journal import CallJournal

_NAMESPACE = "_c10d_functional"


class _Sized(NamedTuple):
    """The part of a tensor that the journal needs, for an output that does not exist yet."""

    elements: int
    dtype: torch.dtype

    def numel(self) -> int:
        return self.elements


Arguments: TypeAlias = Callable[..., tuple[Any, ...]]
"""Turns an operator's arguments into those of the matching method of ``ProcessGroup``."""


def _options(reduce_op: str | None = None, root: int | None = None) -> SimpleNamespace:
    op = None if reduce_op is None else getattr(dist.ReduceOp, reduce_op.upper(), None)
    return SimpleNamespace(reduceOp=op, rootRank=root)


def _share(tensor: torch.Tensor, members: int) -> _Sized:
    return _Sized(tensor.numel() // members, tensor.dtype)


def _all_to_all(
    source: torch.Tensor, out_rows: list[int], in_rows: list[int], _: str
) -> tuple[Any, ...]:
    width = source.numel() // (sum(in_rows) or 1)
    return _Sized(width * sum(out_rows), source.dtype), source, out_rows, in_rows, _options()


_OPERATORS: dict[str, tuple[str, Arguments]] = {
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
    for name, (operation, arguments) in _OPERATORS.items():
        for form in (name, f"{name}_"):
            operator = getattr(getattr(torch.ops, _NAMESPACE), form, None)
            if operator is not None:  # missing in an older or newer torch
                kernel = _kernel(operator.default, journal.functional(operation), arguments)
                library.impl(form, kernel, "BackendSelect", with_keyset=True)
    _kept.append(library)


_Library: Any = torch.library.Library  # untyped
_kept: list[Any] = []
"""Keeps the library alive: its kernels are removed when it is freed."""


def _kernel(
    operator: Any, note: Callable[..., Callable[[], None]], arguments: Arguments
) -> Callable[..., Any]:
    below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)

    def kernel(keys: Any, *args: Any) -> Any:
        if not _is_real(args[0]):
            return operator.redispatch(keys & below, *args)
        issued = note(args[-1], arguments(*args))
        result = operator.redispatch(keys & below, *args)
        issued()
        return result

    return kernel


def _is_real(tensors: Any) -> bool:
    """False for a compiler's fake tensors, which are not sent."""
    several = tensors if isinstance(tensors, list) else [tensors]
    return all(type(tensor) is torch.Tensor for tensor in several) and not several[0].is_meta
