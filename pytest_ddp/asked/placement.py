"""Chooses the machine of each rank of a test. Pure.

Ranks fill machines in order. Without a number of ranks per machine, a test is distributed over all
of them as evenly as possible: users with several machines want tests that cross them, and a test
for a single machine has ``nodes=1``. If each rank needs a GPU, the numbers of GPUs limit how even
the distribution is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pytest_ddp.asked.rules import MAX_LOCAL_WORLD_SIZE


def least_machines(world_size: int, most: int = MAX_LOCAL_WORLD_SIZE) -> int:
    """The least number of machines for so many ranks, with at most ``most`` on one."""
    return math.ceil(world_size / most)


def crowd(world_size: int, most: int) -> str:
    """Why so many ranks do not fit on fewer machines."""
    return f"{world_size} ranks, at most {most} on one"


def place(world_size: int, requested: int | None, nodes: int, most: int | None) -> tuple[int, ...]:
    """The machine of each rank, in order.

    Args:
        world_size: number of ranks, at least ``requested``.
        requested: number of machines in the mark; None to choose it.
        nodes: number of machines in the session.
        most: number of ranks with which a machine is filled; None to distribute them.

    Raises:
        ValueError: there are too few machines; the text has the numbers.
    """
    limit = most or MAX_LOCAL_WORLD_SIZE
    least = least_machines(world_size, limit)
    wanted = requested or (max(least, min(nodes, world_size)) if most is None else least)
    if wanted > nodes:
        by_mark = f"nodes={requested}" if requested else crowd(world_size, limit)
        raise ValueError(f"{by_mark}: {wanted} machines needed, {nodes} in this session")
    if requested is None and most is not None:
        return tuple(rank // most for rank in range(world_size))
    largest = math.ceil(world_size / wanted)
    if most is not None and largest > most:
        raise ValueError(
            f"nodes={requested}: {largest} ranks on one machine needed, at most {most} allowed "
            f"(--ddp-ranks-per-machine)"
        )
    return _in_order(range(wanted), _deal(world_size, [largest] * wanted))


def place_by_room(
    world_size: int, requested: int | None, room: Sequence[int], most: int | None
) -> tuple[int, ...] | None:
    """The machine of each rank if each machine has its own limit; None if they do not fit.

    Args:
        world_size: as in :func:`place`, as are ``requested`` and ``most``.
        requested: machines without room are skipped, so that ``nodes=1`` need not be node 0.
        room: number of ranks that each machine takes.
        most: number of ranks that any machine takes at most.
    """
    room = _limited(room, most)
    chosen = _chosen(world_size, requested, room)
    if chosen is None:
        return None
    rooms = [room[node] for node in chosen]
    fills = requested is None and most is not None
    sizes = _fill(world_size, rooms) if fills else _deal(world_size, rooms)
    return _in_order(chosen, sizes)


def all_room(requested: int | None, room: Sequence[int], most: int | None) -> int:
    """How many ranks fit at most; with ``requested`` on so many machines, 0 if there are fewer."""
    room = _limited(room, most)
    if requested is None:
        return sum(room)
    chosen = [node for node, size in enumerate(room) if size][:requested]
    return sum(room[node] for node in chosen) if len(chosen) == requested else 0


def _limited(room: Sequence[int], most: int | None) -> list[int]:
    return [min(size, most or MAX_LOCAL_WORLD_SIZE) for size in room]


def _chosen(world_size: int, requested: int | None, room: Sequence[int]) -> list[int] | None:
    able = [node for node, size in enumerate(room) if size]
    if requested is None:
        return able if sum(room) >= world_size else None
    by_size = sorted(able, key=lambda node: -room[node])
    for chosen in (able[:requested], sorted(by_size[:requested])):
        if len(chosen) == requested and sum(room[node] for node in chosen) >= world_size:
            return chosen
    return None


def _deal(world_size: int, rooms: Sequence[int]) -> list[int]:
    """How many ranks each machine takes if each takes one in turn, until it is full."""
    sizes = [0] * len(rooms)
    while (left := world_size - sum(sizes)) > 0:
        takers = [index for index, size in enumerate(sizes) if size < rooms[index]]
        for index in takers[:left]:
            sizes[index] += 1
    return sizes


def _fill(world_size: int, rooms: Sequence[int]) -> list[int]:
    """How many ranks each machine takes if each is filled before the next one takes any."""
    sizes: list[int] = []
    for room in rooms:
        sizes.append(min(room, world_size - sum(sizes)))
    return sizes


def _in_order(nodes: Sequence[int], sizes: Sequence[int]) -> tuple[int, ...]:
    return tuple(node for node, size in zip(nodes, sizes, strict=True) for _ in range(size))
