"""Which machine each rank of a test is on. Pure.

Ranks fill machines in order. Without a number of ranks per machine a test is spread over all of
them, as evenly as it goes: who asks for machines wants tests to cross them, and what needs one
machine alone says ``nodes=1``.
"""

from __future__ import annotations

import math


def place(world_size: int, asked: int | None, nodes: int, most: int | None) -> tuple[int, ...]:
    """The machine of each rank, in order.

    Args:
        world_size: number of ranks, at least ``asked``.
        asked: how many machines the test wants; None to see.
        nodes: how many there are.
        most: how many ranks a machine takes; None for any number.

    Raises:
        ValueError: there are too few machines; the text has the numbers.
    """
    wanted = asked or (min(nodes, world_size) if most is None else math.ceil(world_size / most))
    if wanted > nodes:
        by_mark = f"nodes={asked}" if asked else f"{world_size} ranks, at most {most} on one"
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
