"""The rank that this process is, asked at the moment when it is sure to be known."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch.distributed as dist

if TYPE_CHECKING:
    from lightning.pytorch import Trainer


@dataclass(frozen=True)
class Placement:
    """A process's place among the ranks."""

    rank: int
    """Global rank, from 0."""
    world_size: int
    """Number of ranks."""


def current_placement(trainer: Trainer | None) -> Placement:
    """The place of this process, from the trainer, else from the process group.

    Call it in the rank's main process. A DataLoader worker gets the answer handed over:
    started by spawn or forkserver it has no process group, and the RANK variable, which
    it would inherit, is not set under Lightning's own launcher.

    Raises:
        RuntimeError: several ranks were launched and neither knows about them yet; a
            guess would be rank 0 everywhere, and every rank would read the same samples.
    """
    if trainer is not None:
        return Placement(trainer.global_rank, trainer.world_size)
    if dist.is_available() and dist.is_initialized():
        return Placement(dist.get_rank(), dist.get_world_size())
    launched = int(os.environ.get("WORLD_SIZE", "1"))
    if launched > 1:
        raise RuntimeError(
            f"WORLD_SIZE is {launched}, but there is no process group yet; call "
            "init_process_group() before building data, or pass the data module to a Trainer"
        )
    return Placement(rank=0, world_size=1)
