"""How many samples a part may repeat or leave out, by what it declares."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import NamedTuple


class Allowance(NamedTuple):
    """For all ranks together, in one epoch."""

    surplus: int = 0
    """Deliveries more than samples."""
    missing: int = 0
    """Samples that nobody delivers."""


def allowed(
    size: int, world_size: int, traits: AbstractSet[str], batch_size: int = 1, workers: int = 1
) -> Allowance:
    """What ``size`` samples take to be dealt out evenly, in batches of ``batch_size`` a rank.

    A part that both pads and drops makes the ranks' shares equal first, and then leaves out
    what fills no batch, as ``drop_last=True`` does over torch's ``DistributedSampler``. Each of
    the ``workers`` of a stream makes batches by itself, and has an end of its own to drop.
    """
    step = world_size * batch_size
    if "drops" not in traits:
        return Allowance(surplus=-size % step if "pads" in traits else 0)
    surplus = -size % world_size if "pads" in traits else 0
    ends = step * workers if batch_size > 1 else step
    return Allowance(surplus, (size + surplus) % ends)
