"""Which machine each rank of a test is on. Pure.

Ranks fill machines in order. Without a number of ranks per machine a test is spread over all
machines as evenly as possible: tests that cross machines are the reason to have several, and a test
that needs one machine has ``nodes=1``. Where each rank needs a GPU, the GPUs limit the even spread.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pytest_ddp.asked.layout import least_machines, nodes_words
from pytest_ddp.asked.rules import MAX_LOCAL_WORLD_SIZE


def place(world_size: int, nodes: int | None, machines: int, most: int | None) -> tuple[int, ...]:
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
        world_size: as for :func:`place`, as is ``most``.
        nodes: as there; machines without room are skipped, so that ``nodes=1`` need not be node 0.
        room: how many ranks each machine takes.
        most: how many a machine takes at any rate.
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
    """The same if each takes all that it can before the next one takes any."""
    sizes: list[int] = []
    for room in rooms:
        sizes.append(min(room, world_size - sum(sizes)))
    return sizes


def _in_order(nodes: Sequence[int], sizes: Sequence[int]) -> tuple[int, ...]:
    return tuple(node for node, size in zip(nodes, sizes, strict=True) for _ in range(size))
