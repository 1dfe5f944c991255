"""The environment of rank 0 while the pytest process collects a suite written for torchrun.

With ``--ddp-everywhere`` every test runs on N ranks, as ``torchrun --nproc-per-node=N -m pytest``
runs it. The suite's test files and conftests expect the environment of a rank while they are
imported, and may create the process group at once. The pytest process imports them to collect:
until the collection has ended, it has the variables of rank 0 and, if a module creates a group, one
without communication.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from pytest_ddp.launch.rendezvous import rank_environment
from pytest_ddp.system.stdlib import os

_UNUSED_PORT = 1
"""A port on which nothing listens."""


class TorchrunEnvironment:
    """The environment of rank 0 in the pytest process, until the end of collection."""

    def __init__(self, world_size: int) -> None:
        """Set the environment."""
        from torch.distributed import distributed_c10d  # noqa: PLC0415 - the test files need it as well

        self._world_size = world_size
        self._init = distributed_c10d.init_process_group
        self._take()

    def _take(self) -> None:
        self._taken = True
        own = rank_environment(0, self._world_size, _UNUSED_PORT, "pytest-ddp-collection")
        self._before = {name: os.environ.get(name) for name in own}
        os.environ.update(own)
        self._set_init(self._with_fake_group())

    @contextlib.contextmanager
    def left(self) -> Iterator[None]:
        """In the block, restore the process's own environment, for code that reads it."""
        self.leave()
        yield
        self._take()

    def leave(self) -> None:
        """Restore the process's own environment; for the second time, do nothing."""
        if not self._taken:
            return
        self._taken = False
        self._set_init(self._init)
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    def _set_init(self, init: Callable[..., None]) -> None:
        import torch.distributed as dist  # noqa: PLC0415

        for module in (dist, dist.distributed_c10d):
            vars(module)["init_process_group"] = init

    def _with_fake_group(self) -> Callable[..., None]:
        @functools.wraps(self._init)
        def init_process_group(*args: Any, **kwargs: Any) -> None:
            if not self._taken:  # a module imported the name before
                return self._init(*args, **kwargs)
            from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: PLC0415

            return self._init("fake", store=FakeStore(), rank=0, world_size=self._world_size)

        return init_process_group
