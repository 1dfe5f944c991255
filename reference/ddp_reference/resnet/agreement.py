"""Facts and failures that all ranks of the default process group share.

A decision that one rank takes alone (a directory's name, "the data is unusable")
makes the others go on without it, into a collective that never completes. Each
function here is a collective: every rank calls it, at the same point.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

T = TypeVar("T")


class ConfigError(ValueError):
    """What the user gave cannot be used; the text names the value and the fix.

    Raised on all ranks together, so that one of them can print it and all can exit.
    """


def rank_and_world_size() -> tuple[int, int]:
    """This process's rank and the number of ranks.

    Raises ``RuntimeError`` in a rank that asks before its process group exists: the
    usual answer then, rank 0, is wrong in every rank but one.
    """
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise RuntimeError(
            f"WORLD_SIZE is {os.environ['WORLD_SIZE']}, but there is no process group yet; "
            "ask for the rank after init_process_group (in Lightning: in setup() or later)"
        )
    return 0, 1


def from_rank_zero(make: Callable[[], T]) -> T:
    """Call ``make`` on rank 0 and return its result on every rank.

    Raises :class:`ConfigError` on every rank if ``make`` raised it on rank 0.
    """
    rank, world_size = rank_and_world_size()
    if world_size == 1:
        return make()
    answer: list[Any] = [None, None]
    if rank == 0:
        answer = _try(make)
    dist.broadcast_object_list(answer, src=0)
    result, problem = answer
    if problem is not None:
        raise ConfigError(problem)
    made: T = result
    return made


def _try(make: Callable[[], T]) -> list[Any]:
    try:
        return [make(), None]
    except ConfigError as error:
        return [None, str(error)]


def gather(value: T) -> list[T]:
    """Every rank's ``value``, by rank, on every rank."""
    _, world_size = rank_and_world_size()
    if world_size == 1:
        return [value]
    values: list[Any] = [None] * world_size
    dist.all_gather_object(values, value)
    return values


def raise_together(problem: str | None) -> None:
    """Raise :class:`ConfigError` on every rank if any rank has a ``problem``."""
    problems = [text for text in gather(problem) if text is not None]
    if problems:
        raise ConfigError(problems[0])


def require_equal(what: str, value: str) -> None:
    """Raise :class:`ConfigError` on every rank unless all ranks hold the same ``value``."""
    values = gather(value)
    for rank, other in enumerate(values):
        if other != values[0]:
            raise ConfigError(
                f"{what} differs between ranks: {values[0]!r} on rank 0, {other!r} on rank {rank}; "
                "start every rank with the same arguments and the same data"
            )
