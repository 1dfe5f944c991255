"""Points of stores: the methods of ``dist.Store`` that user code or a package calls."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, MutableMapping
from sys import _getframe
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from pytest_ddp.extensions.explore.ranks.accesses import Access, Thing, ThingKind
from pytest_ddp.extensions.explore.ranks.recording import Recording
from pytest_ddp.rank.operations.stream import Operations
from pytest_ddp.rank.operations.wait import Wait, WaitKind

_dist: Any = dist
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


_prefixed: MutableMapping[Any, tuple[str, Any]] = WeakKeyDictionary()
"""The prefix of each prefix store that was made in a run, and the store below it. Asked for it, a
store says no prefix, and that of a process group notes that somebody wants the store below."""


@contextlib.contextmanager
def watching_stores(recording: Recording, operations: Operations) -> Iterator[None]:
    """The points of stores are those of a run, in the block."""
    kind, prefixing = _dist.Store, _dist.PrefixStore
    make = prefixing.__init__

    @functools.wraps(make)
    def making(self: Any, prefix: str, store: Any) -> None:
        make(self, prefix, store)
        _prefixed[self] = prefix, store

    with contextlib.ExitStack() as undo:
        prefixing.__init__ = making
        undo.callback(setattr, prefixing, "__init__", make)
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
        tokens: list[str] = []
        with recording.guarded:
            given = args[0] if args else kwargs.get("key", kwargs.get("keys", ()))
            prefix, place = _whole(store, recording.rank)
            names = [f"{prefix}{key}" for key in (given if isinstance(given, list) else [given])]
            keys = [Thing(ThingKind.KEY, f"{name}{place}") for name in names]
            tokens = [key.token for key in keys]
            uses = [Access(key, changes, verb) for key in keys]
            recording.point(f"{method}:{','.join(names)}", uses, tokens if changes else ())
        if method not in _WAITS:
            # The answer of the store's server is under way: the kernel shows a thread that waits.
            with operations.waiting_for(Wait(WaitKind.UNKNOWN)):
                return original(store, *args, **kwargs)
        with operations.waiting_for(Wait(WaitKind.STORE, words=f"store.{method}")):
            result = original(store, *args, **kwargs)
        recording.note(takes=tokens)
        return result

    return call


def _whole(store: Any, rank: int) -> tuple[str, str]:
    """What comes before a store's keys, and which store has them, as two may have the same keys."""
    prefix = ""
    while store in _prefixed:
        own, store = _prefixed[store]
        prefix = f"{own}/{prefix}"
    if isinstance(store, _dist.TCPStore):
        return prefix, f" of the store at port {store.port}"
    if isinstance(store, _dist.FileStore):
        return prefix, f" of the store {store.path}"
    if isinstance(store, _dist.HashStore):
        return prefix, f" of a store of rank {rank}"
    return prefix, ""  # the default group's
