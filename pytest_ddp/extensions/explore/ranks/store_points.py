"""Points of stores: the methods of ``dist.Store`` that user code or a package calls."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from sys import _getframe
from typing import Any

import torch
from torch._C import _distributed_c10d

from pytest_ddp.extensions.explore.ranks.recording import Recording, Use
from pytest_ddp.rank.operations.stream import Operations
from pytest_ddp.rank.operations.wait import Wait, WaitKind

_c10d: Any = _distributed_c10d
_CHANGES = {
    "set": "sets",
    "add": "adds to",
    "append": "appends to",
    "compare_set": "sets",
    "delete_key": "deletes",
    "multi_set": "sets",
    "queue_push": "pushes to",
}
_READS = {
    "get": "gets",
    "multi_get": "gets",
    "wait": "waits for",
    "check": "looks for",
    "queue_pop": "pops from",
}
_WAITS = frozenset({"get", "multi_get", "wait", "queue_pop"})
_TORCH = str(torch.__file__).rpartition("/")[0] + "/"
_OURS = str(__file__).partition("/pytest_ddp/")[0] + "/pytest_ddp/"


@contextlib.contextmanager
def watching_stores(recording: Recording, operations: Operations) -> Iterator[None]:
    """The points of stores are those of a run, in the block."""
    kind: Any = _c10d.Store
    with contextlib.ExitStack() as undo:
        for method in (*_CHANGES, *_READS):
            original = vars(kind).get(method)
            if original is not None:  # missing in an older torch
                setattr(kind, method, _calling(recording, operations, original, method))
                undo.callback(setattr, kind, method, original)
        yield


def _calling(
    recording: Recording, operations: Operations, original: Any, method: str
) -> Callable[..., Any]:
    changes = method in _CHANGES or method == "queue_pop"
    verb = _CHANGES.get(method) or _READS[method]

    @functools.wraps(original)
    def call(store: Any, *args: Any, **kwargs: Any) -> Any:
        caller = _getframe(1).f_code.co_filename
        if recording.own() is None or caller.startswith((_TORCH, _OURS)):
            return original(store, *args, **kwargs)
        keys = [f"{key}{_place(store, recording.rank)}" for key in _keys(store, args, kwargs)]
        uses: list[Use] = [(f"key {key}", changes, verb) for key in keys]
        gives = [f"key {key}" for key in keys] if changes else []
        recording.point(f"{method}:{','.join(_keys(store, args, kwargs))}", uses, gives)
        if method not in _WAITS:
            return original(store, *args, **kwargs)
        with operations.waiting_for(Wait(WaitKind.STORE, words=f"store.{method}")):
            result = original(store, *args, **kwargs)
        recording.note(takes=[f"key {key}" for key in keys])
        return result

    return call


def _keys(store: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    given = args[0] if args else kwargs.get("key", kwargs.get("keys", ()))
    keys = given if isinstance(given, list | tuple) else [given]
    prefix = ""
    while isinstance(store, _c10d.PrefixStore):
        # A class in Python that derives from it may have no prefix of its own.
        prefix = f"{getattr(store, 'prefix', '')}/{prefix}".lstrip("/")
        store = store.underlying_store
    return [f"{prefix}{key}" for key in keys]


def _place(store: Any, rank: int) -> str:
    """Which store has a key, so that keys of two are two; empty for the session's own."""
    while isinstance(store, _c10d.PrefixStore):
        store = store.underlying_store
    if isinstance(store, _c10d.TCPStore):
        return f" of the store at port {store.port}"
    path = getattr(store, "path", "")
    if isinstance(store, _c10d.FileStore) and not path.startswith(("/proc/", "/dev/fd/")):
        return f" of the store {path}"
    return f" of a store of rank {rank}" if isinstance(store, _c10d.HashStore) else ""
