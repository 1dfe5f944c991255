"""The seed that pauses and random states follow from; light, for the plugin's start."""

from __future__ import annotations

OPTION = "--ddp-nemesis-seed"

_seed = 0


def seed() -> int:
    """What all pauses and random states of this process follow from."""
    return _seed


def use_seed(number: int) -> None:
    """Set the seed, in every process and before the first check."""
    global _seed
    _seed = number
