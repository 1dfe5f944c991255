"""Imports that a host does once, so that ranks need not."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from pytest_ddp.rank.startup.import_scan import ScannedImport
from pytest_ddp.rank.startup.ownership import top_of
from pytest_ddp.system.stdlib import gc

_NEED_DYNAMO = (
    "DistributedDataParallel",
    "DDP(",
    "fully_shard",
    "FullyShardedDataParallel",
    "FSDP(",
    "compile(",
    "lightning",
)


def torch() -> None:
    """Import what every test on ranks uses; imports only, as a host never computes."""
    _import("torch", "torch.distributed")


def what_ranks_use() -> None:
    """Import a rank's modules, and what the first test would import, which takes 0.1 s a rank."""
    # torch.utils._device is imported by torch when code asks for the default device. The functions
    # of torch.distributed.nn.functional take the default group at import time as the default of an
    # argument (torch 2.13): if a test imported it, or wrapped a model in DDP, calls of later tests
    # would use a group that is gone, and the group's threads would never end.
    _import("pytest_ddp.rank.life", "torch.utils._device", "torch.distributed.nn.functional")
    if "numpy" in sys.modules:  # torch works without numpy
        _import("numpy.random")


def what_wraps_models(files: Iterable[Path]) -> None:
    """Import torch._dynamo if a file's text looks as if its tests will.

    ``DistributedDataParallel(...)`` imports it lazily, 1.4 s in every rank; a suite of plain
    collectives should not pay for that. A wrong guess only costs time.
    """
    if any(map(_mentions_wrapping, files)):
        _import("torch._dynamo")


def of_torch(wanted: Iterable[ScannedImport]) -> list[ScannedImport]:
    """Do the imports of torch, and return the other ones that are still to be done."""
    rest = []
    with without_collector():
        for item in wanted:
            if top_of(item.module) == "torch":
                with contextlib.suppress(ImportError):
                    __import__(item.module, fromlist=item.names or None)
            elif not _is_there(item):
                rest.append(item)
    return rest


def _is_there(item: ScannedImport) -> bool:
    module = sys.modules.get(item.module)
    return module is not None and all(hasattr(module, name) for name in item.names)


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Exempt what is imported in the block from garbage collection.

    The collector would run a hundred times while torch is imported (a fifth of that time), and at
    each full collection in each rank, which would also copy the memory pages that ranks share.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _import(*modules: str) -> None:
    with without_collector():
        for module in modules:
            importlib.import_module(module)


def _mentions_wrapping(path: Path) -> bool:
    with contextlib.suppress(OSError):
        text = path.read_text(encoding="utf-8", errors="replace")
        return any(word in text for word in _NEED_DYNAMO)
    return False
