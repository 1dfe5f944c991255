"""The default process group of the ranks of a test, which a subject's code may end."""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import util

import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from ddp_conformance.framework.ranks import Ranks, RanksOfATest
from pytest_ddp.rank.groups.default_group import end, groups


class GroupOfTries:
    """Gives each try of a subject a default group, made anew where a try has ended or replaced it.

    Programs end their group as they end, so the next try would find none. Held weakly: when a rank
    ends its group, its connections close, and its peers notice. A test without a group gets none.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._group: Callable[[], dist.ProcessGroup | None] = _none
        self._backend = ""
        if (group := dist.group.WORLD) is not None:
            # Of a group with several backends, torch tells no name that it takes.
            self._backend = ranks.backend if isinstance(ranks, RanksOfATest) else dist.get_backend()
            self._device = group.bound_device_id
            self._group = weakref.ref(group)

    def is_whole(self) -> bool:
        """Whether this rank's default group is the one that it was."""
        return not self._backend or (dist.is_initialized() and dist.group.WORLD is self._group())

    def begin_try(self) -> None:
        """Make the group anew if it is not whole on every rank; every rank calls this."""
        if self._backend and not all(self._ranks.gather(self.is_whole())):
            self.renew()

    def give_up(self) -> None:
        """Make a new group after a try that raised on some rank, where peers may have operations
        under way; every rank calls it.
        """
        if self._backend:
            self.renew()

    def renew(self) -> None:
        """End what this rank has left of it, and make it anew; every rank calls it."""
        if left := groups():
            with suppress(RuntimeError):  # peers may have ended theirs
                end(left)
        left.clear()
        # Of the session, as subgroups may be made when the folder of this check is gone.
        path = self._ranks.gather(_new_file() if self._ranks.rank == 0 else None)[0]
        dist.init_process_group(
            self._backend,
            store=FileStore(path, self._ranks.world_size),
            rank=self._ranks.rank,
            world_size=self._ranks.world_size,
            device_id=self._device,
        )
        self._group = weakref.ref(dist.group.WORLD)
        if "gloo" in self._backend:
            dist.barrier()  # gloo connects in the background, and a rank may end its group at once


def _none() -> None:
    """Stand in for a weak reference to a group."""


def _new_file() -> str:
    descriptor, path = tempfile.mkstemp(prefix="group-", dir=util.get_temp_dir())
    os.close(descriptor)
    return path
