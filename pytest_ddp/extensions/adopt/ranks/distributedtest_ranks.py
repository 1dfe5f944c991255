"""DeepSpeed's ``DistributedTest`` on ranks: each rank replaces a process of the class.

The harness's own code runs on every rank as in a main process: fixtures, skips, its work before and
after the test. Only ``multiprocessing`` is replaced, for its launching functions.

The pytest process recognises the classes as well, so nothing here imports torch.
"""

from __future__ import annotations

import functools
import multiprocessing
import sys
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import pytest

from pytest_ddp.extensions.adopt.ranks import harness_environment
from pytest_ddp.extensions.adopt.ranks.multiprocessing import Multiprocessing, PoolOfRanks
from pytest_ddp.fixture import current
from pytest_ddp.protocol.host_messages import PLACE_VARIABLES
from pytest_ddp.system.stdlib import os

_OF_A_PROCESS = ("_dist_run", "_dist_init")
"""The method that a started process runs, by its names in several versions."""


def is_launcher(cls: Any) -> bool:
    """Whether calling an instance of the class starts processes for its test."""
    return (
        isinstance(cls, type)
        and bool(getattr(cls, "is_dist_test", False))
        and callable(getattr(cls, "_launch_procs", None))
        and any(callable(getattr(cls, name, None)) for name in _OF_A_PROCESS)
        and hasattr(cls, "world_size")
    )


def asked_sizes(function: Any, cls: Any) -> object:
    """The world size that such a test declares, before its fixtures run; a list is run in turn.

    The nearest mark of the function wins, as in the harness, which reads no other marks.
    """
    marks = (mark for mark in getattr(function, "pytestmark", ()) if mark.name == "world_size")
    if (mark := next(marks, None)) is not None:
        return mark.args[0] if mark.args else None
    world_size: object = cls.world_size
    return world_size


_LAUNCHING = ("_launch", "_close_pool")
"""Beginnings of the names of functions that start or end processes."""


class DistributedTests:
    """A pytest plugin that runs such classes on ranks."""

    def __init__(self) -> None:
        self._outside = {name: os.environ.get(name) for name in PLACE_VARIABLES}
        """The variables of a process that is no rank."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: Any) -> Iterator[None]:
        """Run the test as one of the processes.

        Raises:
            RuntimeError: the test has not failed or skipped, and started no process.
        """
        cls: Any = getattr(item, "cls", None)
        if not is_launcher(cls):
            return (yield)
        with harness_environment.restored(), pytest.MonkeyPatch.context() as patch:
            module = self._begin(cls)
            _launch_own_size(patch, item, cls)
            with module.names.replaced():
                result = yield
        if not module.has_run:
            raise RuntimeError(
                f"{cls.__name__} started no process: a pytest_runtest_call of its conftest "
                f"normally calls it; does that hook exist?"
            )
        return result

    def _begin(self, cls: Any) -> Multiprocessing:
        real = sys.modules.get("torch.multiprocessing", multiprocessing)
        module = Multiprocessing(current(), real, self._outside)
        module.names.find(_launching(cls))
        pools = getattr(cls, "_pool_cache", {})
        for key, pool in list(pools.items()):
            if not isinstance(pool, PoolOfRanks) or pool.is_over:
                del pools[key]
            else:
                pool.use(module)
        return module


def _launch_own_size(patch: pytest.MonkeyPatch, item: Any, cls: Any) -> None:
    """Launch only this test's own size; each other size of the list is a separate test."""
    sizes = asked_sizes(item.function, cls)
    if not isinstance(sizes, list | tuple) or len(sizes) < 2:
        return
    own, launch = current().world_size, cls._launch_procs

    @functools.wraps(launch)
    def launch_own(harness: Any, world_size: int, *args: Any, **kwargs: Any) -> Any:
        return launch(harness, world_size, *args, **kwargs) if world_size == own else None

    patch.setattr(cls, "_launch_procs", launch_own)


def _launching(cls: type) -> Iterator[FunctionType]:
    for base in cls.__mro__:
        for name, value in vars(base).items():
            if isinstance(value, FunctionType) and name.startswith(_LAUNCHING):
                yield value
