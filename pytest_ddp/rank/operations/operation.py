"""The record of what a rank issues. What crosses to the pytest process is made of it."""

from __future__ import annotations

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


class Operation(NamedTuple):
    """One collective, send or receive."""

    group: str
    number: int
    """Number of the collective on its group, from 1; 0 for a send or receive."""
    name: str
    """The public name of its form, as in the table."""
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


def name_of(group: Any) -> str:
    """A group's name; for a backend in Python, the name that torch has registered."""
    try:
        name: str = group.group_name
    except RuntimeError:
        name = dist.distributed_c10d._world.pg_names.get(group, "")
    return name
