"""Imports that a host does once, so that no rank has to."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterable
from pathlib import Path

import pytest

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
    for module in ("torch", "torch.distributed"):
        importlib.import_module(module)


def what_the_tests_use(items: Iterable[pytest.Item]) -> None:
    """Import torch._dynamo if the text of a test file looks as if its tests will.

    ``DistributedDataParallel(...)`` imports it lazily, 1.4 s in every rank; a suite of
    plain collectives should not pay for that. A wrong guess costs time, nothing else.
    """
    if any(_mentions_wrapping(path) for path in {item.path for item in items}):
        importlib.import_module("torch._dynamo")


def _mentions_wrapping(path: Path) -> bool:
    with contextlib.suppress(OSError):
        text = path.read_text(encoding="utf-8", errors="replace")
        return any(word in text for word in _NEED_DYNAMO)
    return False
