"""Imports that a host does once, so that no rank has to."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from pytest_ddp.rank.birth.ownership import top_of
from pytest_ddp.rank.birth.wanted import Import
from pytest_ddp.system.own import gc

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
    """Import what every test on ranks uses. Imports only: a host never computes."""
    _import("torch", "torch.distributed")


def what_ranks_use() -> None:
    """Import the code of ranks, and what it would import at the first test, 0.1 s in each."""
    # torch imports the second one when it is asked for the default device. The third takes
    # the default group of its import as the default argument of its functions (torch 2.13):
    # where a test imports it, or wraps a model in DDP, a later test's calls would go to a
    # group that is gone, which its threads outlive.
    _import("pytest_ddp.rank.life", "torch.utils._device", "torch.distributed.nn.functional")
    if "numpy" in sys.modules:  # which torch does without, if need be
        _import("numpy.random")


def what_wraps_models(files: Iterable[Path]) -> None:
    """Import torch._dynamo if the text of a file looks as if its tests will.

    ``DistributedDataParallel(...)`` imports it lazily, 1.4 s in every rank; a suite of
    plain collectives should not pay for that. A wrong guess costs time, nothing else.
    """
    if any(map(_mentions_wrapping, files)):
        _import("torch._dynamo")


def of_torch(wanted: Iterable[Import]) -> list[Import]:
    """Import what is wanted of torch, and return the rest that is not there yet."""
    rest = []
    with without_collector():
        for item in wanted:
            if top_of(item.module) == "torch":
                with contextlib.suppress(ImportError):
                    __import__(item.module, fromlist=item.names or None)
            elif not _is_there(item):
                rest.append(item)
    return rest


def _is_there(item: Import) -> bool:
    module = sys.modules.get(item.module)
    return module is not None and all(hasattr(module, name) for name in item.names)


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Have the garbage collector never look at what is imported in the block.

    It would look a hundred times while torch is imported (a fifth of that time), and again
    at each full collection in each rank, which would also copy the pages that ranks share.
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
