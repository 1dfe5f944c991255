"""Which machine each rank of a test is on. Pure.

Ranks fill machines in order. Without a number of ranks per machine a test is spread over all of
them, as evenly as it goes: who asks for machines wants tests to cross them, and what needs one
machine alone says ``nodes=1``.
"""

from __future__ import annotations

import math

from pytest_ddp.asked.rules import MAX_LOCAL_WORLD_SIZE


def least_machines(world_size: int, most: int = MAX_LOCAL_WORLD_SIZE) -> int:
    """How many machines so many ranks need, with ``most`` of them on one."""
    return math.ceil(world_size / most)


def crowd(world_size: int, most: int) -> str:
    """Why they do not fit on fewer."""
    return f"{world_size} ranks, at most {most} on one"


def place(world_size: int, asked: int | None, nodes: int, most: int | None) -> tuple[int, ...]:
    """The machine of each rank, in order.

    Args:
        world_size: number of ranks, at least ``asked``.
        asked: how many machines the test wants; None to see.
        nodes: how many there are.
        most: how many ranks a machine is filled with; None to spread them.

    Raises:
        ValueError: there are too few machines; the text has the numbers.
    """
    limit = most or MAX_LOCAL_WORLD_SIZE
    least = least_machines(world_size, limit)
    wanted = asked or (max(least, min(nodes, world_size)) if most is None else least)
    if wanted > nodes:
        by_mark = f"nodes={asked}" if asked else crowd(world_size, limit)
        raise ValueError(f"{by_mark}: {wanted} machines needed, {nodes} in this session")
    if asked is None and most is not None:
        return tuple(rank // most for rank in range(world_size))
    share, more = divmod(world_size, wanted)
    if most is not None and (largest := share + bool(more)) > most:
        raise ValueError(
            f"nodes={asked}: {largest} ranks on one machine needed, at most {most} allowed "
            f"(--ddp-ranks-per-machine)"
        )
    sizes = [share + (node < more) for node in range(wanted)]
    return tuple(node for node, size in enumerate(sizes) for _ in range(size))
