"""How people save on one rank what all read."""

from __future__ import annotations

from collections.abc import Callable

import torch.distributed as dist
from ddp_conformance import Case


def saved_by_rank_0(case: Case, save: Callable[[int], object]) -> Callable[[int], None]:
    """Rank 0 saves, and the others wait until it has."""

    def write(number: int) -> None:
        if case.rank == 0:
            save(number)
        dist.barrier()

    return write
