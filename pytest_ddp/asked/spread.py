"""Distributes ranks over machines that may have different numbers of GPUs. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_ddp.asked.devices import Choice, how_gpus_are_wanted
from pytest_ddp.asked.placement import all_room, place, place_by_room
from pytest_ddp.asked.rules import MAX_WORLD_SIZE, WorldSize


@dataclass(frozen=True, slots=True)
class MachineGpus:
    """The GPUs of one machine of a session."""

    where: str
    """Its number and name for texts: ``node 1 (beta)``."""
    count: int
    """Number of GPUs that torch can use there."""
    kind: str = "cuda"
    """torch's device type of these GPUs."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The machines and limits by which the ranks of one test are distributed."""

    machines: Sequence[MachineGpus]
    asked: int | None
    """Number of machines in the mark; None to choose it."""
    most: int | None
    """Number of ranks that a machine takes at most; None for any number."""

    @property
    def kind(self) -> str:
        """torch's device type of the GPUs of the first machine that has any."""
        return next((machine.kind for machine in self.machines if machine.count), "cuda")

    def gpus_for(self, wanted: WorldSize) -> int:
        """The number of GPUs if each rank gets its own, else 0; the backend depends on it."""
        if wanted == "gpus":
            return int(any(self._room(self.kind, 1)))
        return wanted if self._place(wanted, self.kind, 1) else 0

    def size(self, wanted: WorldSize, chosen: Choice) -> int:
        """The number of ranks; 0 for a rank on each GPU, if there are no GPUs."""
        if wanted != "gpus":
            return wanted
        room = self._room(self._counted(chosen), chosen.ranks_per_gpu)
        return min(all_room(self.asked, room, self.most), MAX_WORLD_SIZE)

    def nodes(self, wanted: WorldSize, chosen: Choice) -> tuple[int, ...]:
        """The machine of each rank.

        Raises:
            ValueError: there are too few machines, or GPUs on them; the text has the numbers.
        """
        world_size = self.size(wanted, chosen)
        if world_size and not (chosen.has_gpu or wanted == "gpus"):
            return place(world_size, self.asked, len(self.machines), self.most)
        if wanted != "gpus" or (self.asked or 0) > len(self.machines):
            # Raises if there are too few machines, whatever GPUs they have: this comes first.
            place(max(world_size, self.asked or 1), self.asked, len(self.machines), self.most)
        by_room = self._place(world_size, self._counted(chosen), chosen.ranks_per_gpu)
        if not by_room:
            raise ValueError(self._shortage(wanted, chosen))
        return by_room

    def layout(self, nodes: Sequence[int], chosen: Choice) -> tuple[int, ...] | None:
        """The GPU of each rank if all GPUs are free; None without GPUs."""
        if not chosen.has_gpu:
            return None
        places = {node: itertools.count() for node in nodes}
        return tuple(next(places[node]) // chosen.ranks_per_gpu for node in nodes)

    def _counted(self, chosen: Choice) -> str:
        return chosen.device if chosen.has_gpu else self.kind

    def _room(self, kind: str, ranks_per_gpu: int) -> list[int]:
        counts = (machine.count if machine.kind == kind else 0 for machine in self.machines)
        return [count * ranks_per_gpu for count in counts]

    def _place(self, world_size: int, kind: str, ranks_per_gpu: int) -> tuple[int, ...] | None:
        room = self._room(kind, ranks_per_gpu)
        return place_by_room(world_size, self.asked, room, self.most)

    def _shortage(self, wanted: WorldSize, chosen: Choice) -> str:
        kind = self._counted(chosen)
        found = ", ".join(_words(machine, kind) for machine in self.machines)
        if wanted == "gpus":
            of = f" of {self._asked_words}" if self.asked else ""
            return f"world_size='gpus' is a rank for each GPU{of}: {found}"
        needed = f"{math.ceil(wanted / chosen.ranks_per_gpu)} needed"
        if self.asked:
            needed += f" on {self._asked_words}"
        limit = f"; at most {self.most} ranks on each (--ddp-ranks-per-machine)" * bool(self.most)
        advice = self._advice(wanted, chosen)
        return f"{how_gpus_are_wanted(chosen, wanted)}: {needed}, {found}{limit}{advice}"

    @property
    def _asked_words(self) -> str:
        return (
            f"{'one machine' if self.asked == 1 else f'{self.asked} machines'} (nodes={self.asked})"
        )

    def _advice(self, world_size: int, chosen: Choice) -> str:
        """Advice with the least number of ranks per GPU that would fit; empty if none does."""
        if chosen.ranks_per_gpu > 1 or chosen.is_exclusive:
            return ""
        for ranks in range(2, world_size + 1):
            if self._place(world_size, chosen.device, ranks):
                return f"; ranks_per_gpu={ranks} lets ranks share them"
        return ""


def _words(machine: MachineGpus, kind: str) -> str:
    of_another = f" of another kind ({machine.kind})" if machine.kind != kind else ""
    return f"{machine.count}{of_another * bool(machine.count)} on {machine.where}"
