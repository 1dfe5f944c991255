"""Ranks as threads of one process, to test the framework itself without processes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass
class _Meeting:
    barrier: threading.Barrier
    objects: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class SimulatedRanks:
    """One thread's view of the others."""

    rank: int
    world_size: int
    meeting: _Meeting

    def gather(self, obj: Any) -> list[Any]:
        """The objects of all threads by rank."""
        self.meeting.objects[self.rank] = obj
        self.meeting.barrier.wait(timeout=60)
        gathered = list(self.meeting.objects)
        self.meeting.barrier.wait(timeout=60)
        return gathered

    @classmethod
    def alone(cls) -> SimulatedRanks:
        """The only rank there is."""
        return cls(0, 1, _Meeting(threading.Barrier(1), [None]))


def on_ranks(world_size: int, body: Callable[[SimulatedRanks], T]) -> list[T | Exception]:
    """What ``body`` returned or raised on each rank."""
    meeting = _Meeting(threading.Barrier(world_size), [None] * world_size)

    def guarded(rank: int) -> T | Exception:
        try:
            return body(SimulatedRanks(rank, world_size, meeting))
        except Exception as error:
            return error

    with ThreadPoolExecutor(world_size) as pool:
        return list(pool.map(guarded, range(world_size)))
