"""The default process group of a rank: built, kept, counted, given up."""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from pytest_ddp.protocol import GroupPlan, RunTest
from pytest_ddp.rank.journal import Journal
from pytest_ddp.survey import GroupCount

_PATIENCE = 0.2
"""Seconds to wait until groups are freed; what takes longer goes on beside the next test."""


class Use(NamedTuple):
    """What has been done with a rank's groups until some moment."""

    made: dict[str, int]
    asked: list[int]
    """Number of operations on each group."""
    held: list[int]
    """Number of references to each group: an FSDP model keeps one, and asks nothing yet."""

    def since(self, before: Use) -> bool:
        """True if something was done since then."""
        if (self.made, self.asked) != (before.made, before.asked):
            return True
        # Fewer are somebody else's, whom the garbage collector found.
        return any(now > then for now, then in zip(self.held, before.held, strict=True))


class DefaultGroup:
    """Owns what ``torch.distributed`` calls the world, from test to test."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self._plan: GroupPlan | None = None
        self._group: dist.ProcessGroup | None = None

    def prepare(self, order: RunTest) -> bool:
        """Have the group that a test needs: kept, built anew, or none.

        Returns:
            True if it was built anew.

        Raises:
            RuntimeError: torch cannot build it (``dist.DistError`` and its kin).
        """
        built = order.group is not None and order.group != self._plan
        if order.group is None or built:
            self.destroy()
        if order.group is not None and built:
            self._build(order.group, order)
        self.journal.begin(groups())
        return built

    def counts(self) -> tuple[GroupCount, ...]:
        """Collectives issued on each group that exists now, since :meth:`prepare`."""
        return tuple(self._count(group) for group in groups())

    def use(self) -> Use:
        """What has been done with the groups until now."""
        present = groups()
        return Use(
            made=dict(self.journal.made),
            asked=[self.journal.operations(group) for group in present],
            held=[sys.getrefcount(group) for group in present],
        )

    def _count(self, group: Any) -> GroupCount:
        world = dist.distributed_c10d._world
        name = world.pg_names[group]
        return GroupCount(
            name=name,
            members=tuple(sorted(world.pg_group_ranks[group])),
            collectives=self.journal.collectives(group) - self.journal.before(name),
            what=self.journal.what.get(name, 0),
            where=self.journal.where.get(name, 0),
        )

    def doubt(self) -> str | None:
        """Why the next test must not reuse the default group; None if it may."""
        if self._group is None:
            return None
        if not dist.is_initialized():
            return "the test destroyed the default process group"
        if dist.group.WORLD is not self._group:
            return "the test replaced the default process group"
        return None

    def left_behind(self) -> bool:
        """True if a test with ``init=False`` ended with a group of its own."""
        return self._group is None and dist.is_initialized()

    def destroy(self) -> None:
        """Give up all groups of this rank."""
        self._plan = self._group = None
        if given_up := groups():
            # A group whose peer is dead may refuse; it is out of the books all the same.
            with contextlib.suppress(RuntimeError):
                dist.destroy_process_group()
            _free(given_up)

    def _build(self, plan: GroupPlan, order: RunTest) -> None:
        dist.init_process_group(
            backend=str(plan.backend),
            store=FileStore(plan.store, plan.world_size),
            rank=order.rank,
            world_size=plan.world_size,
            device_id=_device(order),
        )
        self._plan, self._group = plan, dist.group.WORLD


def groups() -> list[dist.ProcessGroup]:
    """Every group that this rank is in now, the default one first."""
    if not dist.is_initialized():
        return []
    return list(dist.distributed_c10d._world.pg_map)


def _free(given_up: list[dist.ProcessGroup]) -> None:
    """Let go of groups, which gloo frees when the last of their collectives has ended.

    A collective that a peer has not joined may never end, and must not hold up the next test.
    """
    thread = threading.Thread(target=given_up.clear, name="pytest-ddp free", daemon=True)
    thread.start()
    thread.join(_PATIENCE)


def _device(order: RunTest) -> torch.device | None:
    if order.device_index is None:
        return None
    torch.cuda.set_device(order.device_index)
    return torch.device("cuda", order.device_index)
