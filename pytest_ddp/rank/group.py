"""The default process group of a rank: built, kept, counted, given up."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from pytest_ddp.protocol import Backend, GroupCount, GroupPlan, RunTest

_POINT_TO_POINT = ("send", "recv", "recv_anysource")


class DefaultGroup:
    """Owns what ``torch.distributed`` calls the world, from test to test."""

    def __init__(self) -> None:
        self._plan: GroupPlan | None = None
        self._group: dist.ProcessGroup | None = None
        self._before: dict[str, int] = {}
        self._messages = MessageCounter()

    def prepare(self, order: RunTest) -> None:
        """Have the group that a test needs: kept, built anew, or none.

        Raises:
            RuntimeError: torch cannot build it (``dist.DistError`` and its kin).
        """
        if order.group is None or order.group != self._plan:
            self.destroy()
            if order.group is not None:
                self._build(order.group, order)
        self._messages.reset()
        self._before = {name: count for name, (_, count) in self._sequences().items()}

    def counts(self) -> tuple[GroupCount, ...]:
        """Collectives issued on each group that exists now, since :meth:`prepare`."""
        return tuple(
            GroupCount(
                name, members, count - self._before.get(name, 0) - self._messages.on_group(name)
            )
            for name, (members, count) in self._sequences().items()
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
        if dist.is_initialized():
            # A group whose peer is dead may refuse; it is out of the books all the same.
            with contextlib.suppress(RuntimeError):
                dist.destroy_process_group()

    def _build(self, plan: GroupPlan, order: RunTest) -> None:
        dist.init_process_group(
            backend=str(plan.backend),
            store=FileStore(plan.store, plan.world_size),
            rank=order.rank,
            world_size=plan.world_size,
            device_id=_device(order),
        )
        self._plan, self._group = plan, dist.group.WORLD

    def _sequences(self) -> dict[str, tuple[tuple[int, ...], int]]:
        if not dist.is_initialized():
            return {}
        world = dist.distributed_c10d._world
        found: dict[str, tuple[tuple[int, ...], int]] = {}
        group: Any
        for group in world.pg_map:
            with contextlib.suppress(RuntimeError):  # backends that keep no number
                number = group._get_sequence_number_for_group()
                members = tuple(sorted(world.pg_group_ranks[group]))
                found[world.pg_names[group]] = (members, number)
        return found


class MessageCounter:
    """Counts sends and receives on gloo groups, which gloo numbers like collectives.

    They are no collectives: two ranks may legally issue different numbers of them.
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        for name in _POINT_TO_POINT:
            self._count_calls(name)

    def reset(self) -> None:
        self._counts.clear()

    def on_group(self, name: str) -> int:
        return self._counts[name]

    def _count_calls(self, name: str) -> None:
        call = getattr(dist.ProcessGroup, name)

        def counted(group: dist.ProcessGroup, *args: Any, **kwargs: Any) -> Any:
            if str(dist.get_backend(group)) == Backend.GLOO:
                self._counts[group.group_name] += 1
            return call(group, *args, **kwargs)

        setattr(dist.ProcessGroup, name, counted)


def _device(order: RunTest) -> torch.device | None:
    if order.device_index is None:
        return None
    torch.cuda.set_device(order.device_index)
    return torch.device("cuda", order.device_index)
