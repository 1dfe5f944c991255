"""What a run writes: checkpoints' names, files' moments, shared memory."""

from __future__ import annotations

import functools
import importlib
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ddp_conformance.launched.history import Saved
from ddp_conformance.launched.journal import Journal
from ddp_conformance.launched.order import Order
from ddp_conformance.launched.process import own_waits
from ddp_conformance.launched.process.delays import Nemesis
from pytest_ddp.system.file_events import files_of, follow_looks, full_path, opens_to_write

SEGMENTS = "segments"
"""File with the names of the shared-memory segments that a rank opened."""
_MEMORY = "/dev/shm/"
_WRAPPERS = re.compile(r"(?:^|\.)(?:_orig_mod|module|_(?:fsdp|checkpoint)_wrapped_module)(?=\.|$)")


def install(order: Order, journal: Journal, nemesis: Nemesis, bare: set[str]) -> None:
    """Look at files of the run that are opened for writing, and at what is saved."""
    files = Path(order.files(order.rank))
    sys.addaudithook(functools.partial(_on_event, order, nemesis, os.getpid()))
    if order.work.scenario.late is not None:
        own_waits.install(files)
    if order.work.scenario.late == order.rank:
        owner = os.getpid()
        follow_looks(lambda path, *_: _view(order, nemesis, owner, path))
    follow_shared_memory(files / SEGMENTS)
    original = torch.save

    @functools.wraps(original)
    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        for state in _states(obj, bare):
            wrong = tuple(name for name in state if name not in bare)
            path = str(f) if isinstance(f, str | Path) else "a stream"
            journal.add(Saved(order.rank, Path(path).name, wrong))
        nemesis.at_stage()
        original(obj, f, *args, **kwargs)

    torch.save = save


def _states(obj: Any, bare: set[str]) -> Iterator[Mapping[str, Any]]:
    """The mappings in what is saved that hold the bare module's tensors, by whatever names."""
    if not isinstance(obj, Mapping):
        return
    names = [key for key, value in obj.items() if isinstance(value, Tensor)]
    if bare and any(bare_name(str(name)) in bare for name in names):
        yield {str(name): None for name in names}
        return
    for value in obj.values():
        yield from _states(value, bare)


def bare_name(name: str) -> str:
    """The name of a parameter without what wrappers and the compiler put into it."""
    return _WRAPPERS.sub("", name).removeprefix(".")


def _on_event(
    order: Order, nemesis: Nemesis, owner: int, event: str, arguments: tuple[Any, ...]
) -> None:
    if event in _VIEWS and order.work.scenario.late == order.rank:
        _view(order, nemesis, owner, files_of(event, arguments)[0][0])
    if event not in _CHANGES or os.getpid() != owner:
        return
    paths = [_path(given) for given, _ in files_of(event, arguments)]
    if event != "open":
        # With a folder's descriptor it is a part of rmtree, which was an event of its own.
        whole = len(arguments) < 2 or event not in ("os.remove", "os.rmdir") or arguments[1] == -1
        if whole and any(path.startswith(order.directory) for path in paths):
            nemesis.at_change(paths)
    elif not opens_to_write(*arguments[1:3]):
        if paths[0].startswith(order.directory):
            nemesis.at_reading()
    elif paths[0].startswith((order.directory, _MEMORY)):
        if paths[0].startswith(_MEMORY):
            _note(Path(order.files(order.rank), SEGMENTS), paths[0][len(_MEMORY) :])
        nemesis.at_stage()


_CHANGES = frozenset(
    {
        *("open", "os.remove", "os.rmdir", "shutil.rmtree", "os.truncate", "os.rename", "os.link"),
        *("os.symlink", "os.mkdir"),
    }
)
_VIEWS = frozenset({"os.listdir", "os.scandir"})
"""Audit events of files."""


def _view(order: Order, nemesis: Nemesis, owner: int, given: Any) -> None:
    if os.getpid() == owner and _path(given).startswith(order.directory):
        nemesis.at_view()


def _path(given: Any) -> str:
    """The absolute path; empty for a descriptor, as its opening was an event before."""
    return "" if isinstance(given, int) else full_path(given) or ""


def follow_shared_memory(segments: Path) -> None:
    """Record multiprocessing's segments, which are opened in C, without an audit event."""
    module: Any = importlib.import_module("_posixshmem")
    original = module.shm_open

    @functools.wraps(original)
    def shm_open(path: str, *args: Any, **kwargs: Any) -> int:
        _note(segments, path.lstrip("/"))
        descriptor: int = original(path, *args, **kwargs)
        return descriptor

    module.shm_open = shm_open


def _note(segments: Path, name: str) -> None:
    descriptor = os.open(segments, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    os.write(descriptor, f"{name}\n".encode())
    os.close(descriptor)
