"""The records that the journal keeps of calls on process groups."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from functools import wraps
from types import CodeType
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.distributed as dist

Piece: TypeAlias = tuple[tuple[int, torch.dtype], ...]
"""What one rank sends to another: elements and dtype of each tensor, several if coalesced."""

KEPT = 2048
"""How many calls are kept to explain a failure; counters and digests cover all of them."""


class Site(NamedTuple):
    """A place in the user's code."""

    code: CodeType
    line: int

    def __str__(self) -> str:
        return f"{self.code.co_filename}:{self.line}"


class Call(NamedTuple):
    """One collective, send or receive."""

    group: str
    number: int
    """Number of the collective on its group, from 1; 0 for a send or receive."""
    operation: str
    numel: int | None
    """Elements of the tensor, where they must be the same on all ranks."""
    dtype: torch.dtype | None
    reduce_op: str | None
    root: int | None
    """Source or destination in the group of a collective; the peer of a message."""
    tag: int | None
    site: Site
    limit: float | None = None
    """Timeout in seconds that the caller passed to ``wait``."""
    sends: tuple[Piece, ...] = ()
    """What each member gets, in group order; a single entry if all get the same, and for a send.
    Empty for operations that are not made of pieces."""
    receives: tuple[Piece, ...] = ()
    """What is expected of each member, in the same form."""


class OpenMessages:
    """Sends and receives of a test that have not been waited for.

    gloo gives up a message whose work is dropped before it is complete, and later messages between
    the two ranks may then be matched wrongly.
    """

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[dist.Work], Call]] = {}
        self._limit = KEPT
        self._lost: list[Call] = []

    def clear(self) -> None:
        self._entries.clear()
        self._lost.clear()

    def add(self, call: Call, reference: weakref.ref[dist.Work]) -> None:
        self._entries[id(call)] = reference, call
        if len(self._entries) > self._limit:
            self._find_lost()

    def close(self, call: Call) -> None:
        """Remove a message: the wait for it has ended."""
        self._entries.pop(id(call), None)

    def lost(self) -> list[Call]:
        """Messages whose work was dropped before a wait."""
        self._find_lost()
        return [*self._lost]

    def _find_lost(self) -> None:
        for key, (reference, call) in list(self._entries.items()):
            # Another thread may be faster.
            if reference() is None and self._entries.pop(key, None) is not None:
                self._lost.append(call)
        self._limit = max(KEPT, 2 * len(self._entries))


class CallsByWork:
    """Maps a ``Work`` to its call; takes a third of the time of a weak dictionary."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[dist.Work], Call]] = {}
        self._limit = KEPT

    def put(self, work: dist.Work, call: Call) -> weakref.ref[dist.Work]:
        reference = weakref.ref(work)
        self._entries[id(work)] = reference, call
        if len(self._entries) > self._limit:
            self._drop_dead()
        return reference

    def get(self, work: dist.Work) -> Call | None:
        reference, call = self._entries.get(id(work), (None, None))
        # By now, another work may have the id of one that was freed.
        return call if reference is not None and reference() is work else None

    def _drop_dead(self) -> None:
        for key, (reference, _) in list(self._entries.items()):
            if reference() is None:
                self._entries.pop(key, None)
        self._limit = max(KEPT, 2 * len(self._entries))


# ------------------------------------------------------------------
# What each rank sends to each other one, in operations whose sizes may be uneven.


Pieces: TypeAlias = tuple[tuple[Piece, ...], tuple[Piece, ...]]
"""What a rank sends to each member of its group, and what it expects from each."""
Reader: TypeAlias = Callable[[Any, tuple[Any, ...]], Pieces]


def dtype_of(pieces: tuple[Piece, ...]) -> torch.dtype | None:
    """The dtype of the first tensor, if there is one."""
    return pieces[0][0][1] if pieces and pieces[0] else None


def piece_of(tensors: Any) -> tuple[Piece, ...]:
    """What a message has; none for wrong arguments, for which torch raises a better error."""
    try:
        return (_piece(*tensors),)
    except (AttributeError, TypeError):
        return ()


def _or_none(read: Reader) -> Reader:
    """Make a reader return no pieces for wrong arguments, for which torch raises a better error."""

    @wraps(read)
    def pieces(group: Any, args: tuple[Any, ...]) -> Pieces:
        try:
            return read(group, args)
        except (AttributeError, IndexError, TypeError, ZeroDivisionError):
            return (), ()

    return pieces


@_or_none
def _all_gather(group: Any, args: tuple[Any, ...]) -> Pieces:
    outputs, source = _unlisted(args[0], args[1])
    return (_piece(source),), _each(outputs)


@_or_none
def _reduce_scatter(group: Any, args: tuple[Any, ...]) -> Pieces:
    inputs, result = _unlisted(args[1], args[0])
    return _each(inputs), (_piece(result),)


@_or_none
def _all_to_all(group: Any, args: tuple[Any, ...]) -> Pieces:
    return _each(args[1]), _each(args[0])


@_or_none
def _all_to_all_single(group: Any, args: tuple[Any, ...]) -> Pieces:
    output, source, output_splits, input_splits = args[:4]
    members = group.size()
    return _split(source, input_splits, members), _split(output, output_splits, members)


@_or_none
def _all_gather_coalesced(group: Any, args: tuple[Any, ...]) -> Pieces:
    return (_piece(*args[1]),), _merged(tuple(_piece(*tensors) for tensors in args[0]))


@_or_none
def _same_for_all(group: Any, args: tuple[Any, ...]) -> Pieces:
    """The first argument is what each rank sends to, or receives from, all others."""
    piece = (_piece(*args[0]),)
    return piece, piece


@_or_none
def _gathered_into_one(group: Any, args: tuple[Any, ...]) -> Pieces:
    piece = (_piece(*args[1]),)
    return piece, piece


PIECES: dict[str, Reader] = {
    "all_gather": _all_gather,
    "all_gather_coalesced": _all_gather_coalesced,
    "all_gather_into_tensor_coalesced": _gathered_into_one,
    "all_reduce_coalesced": _same_for_all,
    "reduce_scatter": _reduce_scatter,
    "reduce_scatter_tensor_coalesced": _same_for_all,
    "all_to_all": _all_to_all,
    "all_to_all_single": _all_to_all_single,
}
"""Readers of the arguments of ``ProcessGroup``'s methods, by the operation's public name."""


def _unlisted(several: Any, one: Any) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Both without their list, which has an entry for each GPU of the process."""
    return (several[0], one[0]) if isinstance(one, list) else (several, one)


def _piece(*tensors: torch.Tensor) -> Piece:
    return tuple([(tensor.numel(), tensor.dtype) for tensor in tensors])


def _each(tensors: Iterable[torch.Tensor]) -> tuple[Piece, ...]:
    return _merged(tuple([((tensor.numel(), tensor.dtype),) for tensor in tensors]))


def _split(tensor: torch.Tensor, rows: list[int], members: int) -> tuple[Piece, ...]:
    numel, dtype = tensor.numel(), tensor.dtype
    if not rows:
        return (((numel // members, dtype),),)
    width = numel // (sum(rows) or 1)
    return _merged(tuple([((count * width, dtype),) for count in rows]))


def _merged(pieces: tuple[Piece, ...]) -> tuple[Piece, ...]:
    """A single piece if all are equal."""
    return pieces[:1] if pieces == pieces[:1] * len(pieces) else pieces
