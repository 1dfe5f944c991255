"""Suites written for ``torchrun --nproc-per-node=N -m pytest``: every test on N ranks.

Their files expect a rank's place while they are imported, as their conftests do, which may build
the process group at once. The pytest process imports them to collect: it is given the variables
of rank 0 and, if a module creates a group, one without communication.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pytest_ddp.launch.rendezvous import rank_environment
from pytest_ddp.settings.mark import DdpTest
from pytest_ddp.system.stdlib import inspect, os

_NOBODY = 1
"""A port on which nothing listens."""


def as_ddp_test(item: pytest.Item, world_size: int) -> DdpTest | None:
    """A ddp test of what ranks can run; None for the rest."""
    if not isinstance(item, pytest.Function) or inspect.isasyncgenfunction(item.function):
        return None
    return DdpTest(world_size, keeps_group=True, own_tmp_path=True)


class TorchrunEnvironment:
    """Rank 0's place, for what is imported in the pytest process until it has collected."""

    def __init__(self, world_size: int) -> None:
        """Take the place."""
        from torch.distributed import distributed_c10d  # noqa: PLC0415 - they will need it

        self._world_size = world_size
        self._init = distributed_c10d.init_process_group
        self._take()

    def _take(self) -> None:
        self._taken = True
        own = rank_environment(0, self._world_size, _NOBODY, "pytest-ddp-collection")
        self._before = {name: os.environ.get(name) for name in own}
        os.environ.update(own)
        self._set_init(self._with_nobody())

    @contextlib.contextmanager
    def left(self) -> Iterator[None]:
        """Have it given up in a block, for what asks for this process's own place."""
        self.leave()
        yield
        self._take()

    def leave(self) -> None:
        """Give it up; for the second time, do nothing."""
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

    def _with_nobody(self) -> Callable[..., None]:
        @functools.wraps(self._init)
        def init_process_group(*args: Any, **kwargs: Any) -> None:
            if not self._taken:  # imported by name while it was
                return self._init(*args, **kwargs)
            from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: PLC0415

            return self._init("fake", store=FakeStore(), rank=0, world_size=self._world_size)

        return init_process_group
