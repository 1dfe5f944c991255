"""The seed of pauses and random states. Light, as the plugin imports it at start."""

from __future__ import annotations

OPTION = "--ddp-nemesis-seed"

_seed = 0


def seed() -> int:
    """The seed of all pauses and random states of this process."""
    return _seed


def use_seed(number: int) -> None:
    """Set the seed, in every process and before the first check."""
    global _seed
    _seed = number
