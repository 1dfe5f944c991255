"""The environment of a harness's main process, which its spawned processes inherit."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from pytest_ddp.fixture import Ddp
from pytest_ddp.system.stdlib import os

_OF_A_RANK = frozenset({"RANK", "LOCAL_RANK", "ROLE_RANK"})
"""Variables that differ between ranks in any case."""


@contextlib.contextmanager
def inherited(ddp: Ddp) -> Iterator[None]:
    """In the block, the process is like a spawned one: without a rank; its changes are undone."""
    with restored():
        share(ddp)
        change(dict.fromkeys(_OF_A_RANK))
        yield


@contextlib.contextmanager
def restored() -> Iterator[None]:
    """After the block, restore the environment."""
    before = dict(os.environ)
    try:
        yield
    finally:
        _become(before)


def share(ddp: Ddp) -> None:
    """Make the environment of rank 0 that of every rank.

    The set-up runs on all ranks, so each has found its own free port or temporary directory.
    """
    own = {name: value for name, value in os.environ.items() if name in _OF_A_RANK}
    _become(ddp.broadcast(dict(os.environ) if ddp.rank == 0 else None) | own)


def change(variables: Mapping[str, str | None]) -> None:
    """Set these variables; remove those whose value is None."""
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _become(environment: dict[str, str]) -> None:
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update(environment)
