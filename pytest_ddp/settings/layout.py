"""The machines and GPUs on which the ranks of a session can run. Pure."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

from pytest_ddp.settings.devices import Choice, shortage
from pytest_ddp.settings.rules import MAX_LOCAL_WORLD_SIZE, WorldSize


@dataclass(frozen=True, slots=True)
class Placement:
    """The machines and GPUs of one test's ranks, or why it cannot run."""

    world_size: int
    """Number of ranks; 0 if it is that of GPUs, and there are none."""
    devices: tuple[int, ...] | None = None
    """The GPU of each rank, as index into the visible ones of its machine, where all are free; None
    where ranks get none."""
    nodes: tuple[int, ...] = ()
    """The machine of each rank, by its number; empty in a session on one machine."""
    skip: str | None = None
    """Why the test cannot run on what there is; None if it can."""


class Layout(ABC):
    """What a session has for its ranks; :class:`OneMachine` unless a plugin has another one."""

    @property
    @abstractmethod
    def max_world_size(self) -> int:
        """The most ranks that a test may have; used before the session starts."""

    @abstractmethod
    def gpus_for(self, wanted: WorldSize, nodes: int | None) -> tuple[int, str]:
        """How many GPUs count where a backend is chosen, and what torch calls them.

        Args:
            wanted: number of ranks, or ``gpus`` for one on each GPU.
            nodes: the mark's number of machines; None if it names none.
        """

    @abstractmethod
    def place(self, wanted: WorldSize, nodes: int | None, chosen: Choice) -> Placement:
        """Place the ranks of a test.

        Args:
            wanted: as for :meth:`gpus_for`, as is ``nodes``.
            chosen: backend and device of the test.
        """


@dataclass(frozen=True, slots=True)
class OneMachine(Layout):
    """The layout of this machine alone."""

    gpus: int
    """Number of GPUs that torch can use."""
    kind: str = "cuda"
    """torch's device type of these GPUs."""

    @property
    def max_world_size(self) -> int:
        return MAX_LOCAL_WORLD_SIZE

    def gpus_for(self, wanted: WorldSize, nodes: int | None) -> tuple[int, str]:
        return self.gpus, self.kind

    def place(self, wanted: WorldSize, nodes: int | None, chosen: Choice) -> Placement:
        everywhere = min(self.gpus * chosen.ranks_per_gpu, MAX_LOCAL_WORLD_SIZE)
        world_size = everywhere if wanted == "gpus" else wanted
        skip = self._shortage(wanted, chosen) or _one_machine_is_too_few(world_size, nodes)
        return Placement(world_size, chosen.layout(world_size), skip=skip)

    def _shortage(self, wanted: WorldSize, chosen: Choice) -> str | None:
        if wanted != "gpus":
            return shortage(chosen, wanted, self.gpus, self.kind)
        if self.gpus and (not chosen.has_gpu or chosen.device == self.kind):
            return None
        return "world_size='gpus' is a rank for each GPU: 0 found usable by torch"


def least_machines(world_size: int, most: int = MAX_LOCAL_WORLD_SIZE) -> int:
    """How many machines so many ranks need, with ``most`` of them on one."""
    return math.ceil(world_size / most)


def nodes_words(world_size: int, nodes: int | None, most: int = MAX_LOCAL_WORLD_SIZE) -> str:
    """Why a test needs its number of machines: by its mark, or by its number of ranks."""
    return f"nodes={nodes}" if nodes else f"{world_size} ranks, at most {most} on one"


def _one_machine_is_too_few(world_size: int, nodes: int | None) -> str | None:
    needed = nodes or least_machines(world_size)
    if needed <= 1:
        return None
    # No error: it may be meant for a cluster, and the suite is run elsewhere, too.
    words = nodes_words(world_size, nodes)
    return f"{words}: {needed} machines needed, this session has one"
