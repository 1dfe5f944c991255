"""Makes the record of an operation from the arguments of a method of ``ProcessGroup``."""

from __future__ import annotations

from collections.abc import Callable
from sys import _getframe
from typing import Any, TypeAlias

import torch

from pytest_ddp.rank.operations.operation import (
    Description,
    Issuer,
    Operation,
    Piece,
    Site,
    name_of,
)
from pytest_ddp.rank.operations.origins import user_frame
from pytest_ddp.rank.operations.pieces import dtype_of, piece_of, reader_of
from pytest_ddp.rank.operations.table import Form
from pytest_ddp.system.stdlib import zlib

Describe: TypeAlias = Callable[[Any, tuple[Any, ...], dict[str, Any]], Operation]
"""Is called with a process group and the arguments, by the function that user code leads to."""


class Describer:
    """Makes records, and remembers what those of a loop have in common."""

    def __init__(self) -> None:
        self.root = ""
        """Folder of files that are the same on another machine, under another root there."""
        self._known: dict[tuple[Any, ...], Description] = {}

    def forget(self) -> None:
        """Drop what is remembered, which keeps code of a test alive."""
        self._known.clear()

    def of(self, form: Form, called: str, issuer: Issuer = Issuer.PYTHON) -> Describe:
        """What makes records of one form.

        Args:
            form: the table's row.
            called: torch's name of the method or operator.
            issuer: what the records say.
        """
        if form.is_message:
            return self._messages(form, called)
        return self._collectives(form, called, issuer)

    def _collectives(self, form: Form, called: str, issuer: Issuer) -> Describe:
        position, pieces, known = form.size, reader_of(form), self._known
        name = form.name

        def describe(group: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Operation:
            options = args[-1] if args else kwargs.get("opts")
            numel, dtype = _size(args, position)
            sends, receives = _NO_PIECES
            if pieces is not None:
                sends, receives = pieces(group, args)
                dtype = dtype_of(sends)
            root = getattr(options, "rootRank", None)
            reduce_op = getattr(options, "reduceOp", None)
            frame = user_frame(_getframe(2))
            assert frame is not None
            code = frame.f_code  # kept alive by the description's site, so that its id stays unique
            place = (id(code), frame.f_lasti, sends, receives)
            key = (called, numel, dtype, hash(reduce_op), root, place)
            if (described := known.get(key)) is None:
                site = Site(code, frame.f_lineno)
                what = (name, numel, dtype, _name(reduce_op), root)
                where = (code.co_filename.removeprefix(self.root), site.line, sends, receives)
                described = known[key] = Description(
                    *(form, called, numel, dtype, what[3], root, None, site, sends, receives),
                    _checksum(what),
                    _checksum(where),
                )
            return Operation(group, name_of(group), described, issuer)

        return describe

    def _messages(self, form: Form, called: str) -> Describe:
        is_send = form.name == "send"

        def describe(group: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Operation:
            peer, tag = ends(args, kwargs)
            piece = piece_of(args[0] if args else kwargs.get("tensors"))
            frame = user_frame(_getframe(2))
            assert frame is not None
            described = Description(
                form,
                called,
                root=peer,
                tag=tag,
                site=Site(frame.f_code, frame.f_lineno),
                sends=piece if is_send else (),
                receives=() if is_send else piece,
            )
            return Operation(group, name_of(group), described, Issuer.PYTHON)

        return describe


_NO_PIECES: tuple[tuple[Piece, ...], tuple[Piece, ...]] = ((), ())


def _checksum(values: tuple[Any, ...]) -> int:
    """A checksum that is the same in all processes, unlike ``hash``."""
    return zlib.crc32(repr(values).encode(errors="surrogateescape"))


def _size(args: tuple[Any, ...], position: int | None) -> tuple[int | None, torch.dtype | None]:
    if position is None or len(args) <= position:
        return None, None
    tensor = args[position]
    if isinstance(tensor, list):
        tensor = tensor[0]
    return tensor.numel(), tensor.dtype


def _name(reduce_op: Any) -> str | None:
    return None if reduce_op is None else str(getattr(reduce_op, "op", reduce_op).name)


def ends(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, int]:
    """Peer and tag from the arguments of a message's method; -1 for a receive from any."""
    if len(args) == 3:
        return args[1], args[2]
    given = dict(zip(("tensors", "peer", "tag"), args, strict=False)) | kwargs
    if "peer" in given and len(given) == 2:
        return -1, given["peer"]
    peer = given.get("peer", given.get("dstRank", given.get("srcRank", -1)))
    return peer, given.get("tag", 0)
