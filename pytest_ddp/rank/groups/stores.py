"""Stores that user code has made and still holds: listening ports, and files of keys."""

from __future__ import annotations

import functools
import itertools
import weakref
from sys import _getframe
from typing import Any

import torch.distributed as dist

from pytest_ddp.rank.groups.origins import asked_by_user

_made: dict[int, tuple[weakref.ref[Any], str, str]] = {}
"""Kind and name of each store that may still be held, by a number of its own."""
_numbers = itertools.count()


def watch() -> None:
    """Record stores that user code makes from now on."""
    for kind, name_of in (("TCPStore", _port_of), ("FileStore", _file_of)):
        _wrap(getattr(dist, kind), kind, name_of)


def held() -> dict[int, tuple[str, str]]:
    """Kind and name of the stores that are still referenced; a process group is no reference."""
    for number, (store, *_) in list(_made.items()):
        if store() is None:
            del _made[number]
    return {number: (kind, name) for number, (_, kind, name) in _made.items()}


def _wrap(store_type: Any, kind: str, name_of: Any) -> None:
    original = store_type.__init__

    @functools.wraps(original)
    def init(store: Any, *args: Any, **kwargs: Any) -> None:
        original(store, *args, **kwargs)
        if asked_by_user(_getframe(1)):
            _made[next(_numbers)] = weakref.ref(store), kind, name_of(store)

    store_type.__init__ = init


def _port_of(store: Any) -> str:
    return f"{store.host}:{store.port}"


def _file_of(store: Any) -> str:
    return str(store.path)
