"""What each rank sends to each other one, in operations whose sizes may be uneven."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, TypeAlias

import torch

from pytest_ddp.rank.operations.operation import Piece
from pytest_ddp.rank.operations.table import Form, Transfer

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


_READERS: dict[Transfer, Reader] = {
    Transfer.GATHERED: _all_gather,
    Transfer.SCATTERED: _reduce_scatter,
    Transfer.EXCHANGED: _all_to_all,
    Transfer.SPLIT: _all_to_all_single,
    Transfer.LISTS_GATHERED: _all_gather_coalesced,
    Transfer.GATHERED_INTO_ONE: _gathered_into_one,
    Transfer.SAME_FOR_ALL: _same_for_all,
}


def reader_of(form: Form) -> Reader | None:
    """The function that reads the pieces in the arguments of a form's method; None if it has
    none."""
    return _READERS.get(form.transfer)


def _unlisted(several: Any, one: Any) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Both arguments without their list, which has an entry for each GPU of the process."""
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
