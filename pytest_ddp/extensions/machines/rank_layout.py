"""How ranks are spread over machines that may have different numbers of GPUs. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pytest_ddp.settings.devices import Choice, gpu_need_text
from pytest_ddp.settings.layout import Layout, Placement, least_machines, nodes_words
from pytest_ddp.settings.rules import MAX_LOCAL_WORLD_SIZE, MAX_WORLD_SIZE, WorldSize

# Ranks fill machines in order. Without a number of ranks per machine a test is spread over all
# machines as evenly as possible: tests that cross machines are the reason to have several, and a
# test that needs one machine has ``nodes=1``. Where each rank needs a GPU, the GPUs limit the even
# spread.


def place_ranks(
    world_size: int, nodes: int | None, machines: int, most: int | None
) -> tuple[int, ...]:
    """The machine of each rank, in order.

    Args:
        world_size: number of ranks, at least ``nodes``.
        nodes: the mark's number of machines; None if it names none.
        machines: how many there are.
        most: how many ranks a machine is filled with; None to spread them.

    Raises:
        ValueError: there are too few machines; the text has the numbers.
    """
    limit = most or MAX_LOCAL_WORLD_SIZE
    least = least_machines(world_size, limit)
    needed = nodes or (max(least, min(machines, world_size)) if most is None else least)
    if needed > machines:
        words = nodes_words(world_size, nodes, limit)
        raise ValueError(f"{words}: {needed} machines needed, {machines} in this session")
    if nodes is None and most is not None:
        return tuple(rank // most for rank in range(world_size))
    largest = math.ceil(world_size / needed)
    if most is not None and largest > most:
        raise ValueError(
            f"nodes={nodes}: {largest} ranks on one machine needed, at most {most} allowed "
            f"(--ddp-ranks-per-machine)"
        )
    return _in_order(range(needed), _deal(world_size, [largest] * needed))


def place_by_room(
    world_size: int, nodes: int | None, room: Sequence[int], most: int | None
) -> tuple[int, ...] | None:
    """The machine of each rank where machines have room for so many each; None if they have not.

    Args:
        world_size: number of ranks.
        nodes: the mark's number of machines; None if it names none. Machines without room are
            skipped, so that ``nodes=1`` need not be node 0.
        room: how many ranks each machine takes.
        most: how many ranks a machine is filled with; None to spread them.
    """
    room = _limited(room, most)
    chosen = _chosen(world_size, nodes, room)
    if chosen is None:
        return None
    rooms = [room[node] for node in chosen]
    fills = nodes is None and most is not None
    sizes = _fill(world_size, rooms) if fills else _deal(world_size, rooms)
    return _in_order(chosen, sizes)


def all_room(nodes: int | None, room: Sequence[int], most: int | None) -> int:
    """How many ranks fit at most; on so many machines as the test wants, 0 if there are fewer."""
    room = _limited(room, most)
    if nodes is None:
        return sum(room)
    chosen = [node for node, size in enumerate(room) if size][:nodes]
    return sum(room[node] for node in chosen) if len(chosen) == nodes else 0


def _limited(room: Sequence[int], most: int | None) -> list[int]:
    return [min(size, most or MAX_LOCAL_WORLD_SIZE) for size in room]


def _chosen(world_size: int, nodes: int | None, room: Sequence[int]) -> list[int] | None:
    able = [node for node, size in enumerate(room) if size]
    if nodes is None:
        return able if sum(room) >= world_size else None
    by_size = sorted(able, key=lambda node: -room[node])
    for chosen in (able[:nodes], sorted(by_size[:nodes])):
        if len(chosen) == nodes and sum(room[node] for node in chosen) >= world_size:
            return chosen
    return None


def _deal(world_size: int, rooms: Sequence[int]) -> list[int]:
    """How many ranks each of these takes if each takes one in turn, until it has no more room."""
    sizes = [0] * len(rooms)
    while (left := world_size - sum(sizes)) > 0:
        takers = [index for index, size in enumerate(sizes) if size < rooms[index]]
        for index in takers[:left]:
            sizes[index] += 1
    return sizes


def _fill(world_size: int, rooms: Sequence[int]) -> list[int]:
    """How many ranks each takes if it takes all that it can before the next one takes any."""
    sizes: list[int] = []
    for room in rooms:
        sizes.append(min(room, world_size - sum(sizes)))
    return sizes


def _in_order(nodes: Sequence[int], sizes: Sequence[int]) -> tuple[int, ...]:
    return tuple(node for node, size in zip(nodes, sizes, strict=True) for _ in range(size))


@dataclass(frozen=True, slots=True)
class MachineGpus:
    """The GPUs of one machine of a session."""

    where: str
    """The machine's number and name, as texts have it: ``node 1 (beta)``."""
    count: int
    """How many GPUs torch can use on the machine."""
    kind: str = "cuda"
    """torch's device type of these GPUs."""


@dataclass(frozen=True, slots=True)
class RankLayout:
    """Decides where the ranks of one test run."""

    machines: Sequence[MachineGpus]
    count: int | None
    """The mark's number of machines; None if it names none."""
    most: int | None
    """How many ranks a machine takes; None for any number."""

    @property
    def kind(self) -> str:
        """What torch calls the GPUs of the first machine that has any."""
        return next((machine.kind for machine in self.machines if machine.count), "cuda")

    def gpus_for(self, wanted: WorldSize) -> int:
        """The number of GPUs by which a backend is chosen: one for each rank, or 0 if there are
        fewer."""
        if wanted == "gpus":
            return int(any(self._room(self.kind, 1)))
        return wanted if self._place(wanted, self.kind, 1) else 0

    def size(self, wanted: WorldSize, chosen: Choice) -> int:
        """The number of ranks; 0 if it is that of GPUs, and there are none."""
        if wanted != "gpus":
            return wanted
        room = self._room(self._counted(chosen), chosen.ranks_per_gpu)
        return min(all_room(self.count, room, self.most), MAX_WORLD_SIZE)

    def nodes(self, wanted: WorldSize, chosen: Choice) -> tuple[int, ...]:
        """The machine of each rank.

        Raises:
            ValueError: there are too few machines, or GPUs on them; the text has the numbers.
        """
        world_size = self.size(wanted, chosen)
        if world_size and not (chosen.has_gpu or wanted == "gpus"):
            return place_ranks(world_size, self.count, len(self.machines), self.most)
        if wanted != "gpus" or (self.count or 0) > len(self.machines):
            # Whatever they have: too few machines are reported first.
            place_ranks(
                max(world_size, self.count or 1),
                self.count,
                len(self.machines),
                self.most,
            )
        by_room = self._place(world_size, self._counted(chosen), chosen.ranks_per_gpu)
        if not by_room:
            raise ValueError(self._shortage(wanted, chosen))
        return by_room

    def layout(self, nodes: Sequence[int], chosen: Choice) -> tuple[int, ...] | None:
        """The GPU of each rank, where all are free; None on no GPU."""
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
        return place_by_room(world_size, self.count, room, self.most)

    def _shortage(self, wanted: WorldSize, chosen: Choice) -> str:
        kind = self._counted(chosen)
        found = ", ".join(_words(machine, kind) for machine in self.machines)
        if wanted == "gpus":
            of = f" of {self._nodes_words}" if self.count else ""
            return f"world_size='gpus' is a rank for each GPU{of}: {found}"
        needed = f"{math.ceil(wanted / chosen.ranks_per_gpu)} needed"
        if self.count:
            needed += f" on {self._nodes_words}"
        limit = f"; at most {self.most} ranks on each (--ddp-ranks-per-machine)" * bool(self.most)
        advice = self._advice(wanted, chosen)
        return f"{gpu_need_text(chosen, wanted)}: {needed}, {found}{limit}{advice}"

    @property
    def _nodes_words(self) -> str:
        words = "one machine" if self.count == 1 else f"{self.count} machines"
        return f"{words} (nodes={self.count})"

    def _advice(self, world_size: int, chosen: Choice) -> str:
        """The least number of ranks for each GPU with which they would fit, if there is one."""
        if chosen.ranks_per_gpu > 1 or chosen.is_exclusive:
            return ""
        for ranks in range(2, world_size + 1):
            if self._place(world_size, chosen.device, ranks):
                return f"; ranks_per_gpu={ranks} lets ranks share them"
        return ""


@dataclass(frozen=True, slots=True)
class SeveralMachines(Layout):
    """Machines that are known as soon as their agents have joined."""

    machines: Callable[[], Sequence[MachineGpus]]
    """Returns all machines, and waits for those that have not come yet."""
    most: int | None
    """How many ranks a machine takes; None for any number."""

    @property
    def max_world_size(self) -> int:
        return MAX_WORLD_SIZE

    def gpus_for(self, wanted: WorldSize, nodes: int | None) -> tuple[int, str]:
        spread = self._spread(nodes)
        return spread.gpus_for(wanted), spread.kind

    def place(self, wanted: WorldSize, nodes: int | None, chosen: Choice) -> Placement:
        spread = self._spread(nodes)
        world_size, skip = spread.size(wanted, chosen), None
        try:
            placed = spread.nodes(wanted, chosen)
        except ValueError as error:
            placed, skip = (), str(error)
        return Placement(world_size, spread.layout(placed, chosen), placed, skip)

    def _spread(self, nodes: int | None) -> RankLayout:
        return RankLayout(self.machines(), nodes, self.most)


def _words(machine: MachineGpus, kind: str) -> str:
    of_another = f" of another kind ({machine.kind})" if machine.kind != kind else ""
    return f"{machine.count}{of_another * bool(machine.count)} on {machine.where}"
