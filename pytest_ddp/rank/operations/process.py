"""This process's stream of operations, in a rank and elsewhere."""

from __future__ import annotations

from functools import cache

from pytest_ddp.rank.operations import kernels, methods
from pytest_ddp.rank.operations.stream import Needs, Operations

_PROVISIONS = {
    Needs.NOTHING: methods.watch_python,
    Needs.CPP | Needs.ARGUMENTS: kernels.watch_operators,
    Needs.USES: methods.watch_uses,
}


@cache
def operations_of_process() -> Operations:
    """The stream. torch's methods are wrapped while somebody records or subscribes."""
    return new_stream()


def new_stream() -> Operations:
    """Make another stream, which wraps what the process's one has wrapped."""
    return Operations(_PROVISIONS)
