"""A loop that refuses a checkpoint on one rank, while another one waits for it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch.distributed as dist
from ddp_conformance import Case, TrainLoop
from ddp_conformance.determinism.history import LoopRaised
from ddp_conformance.determinism.runs import LoopOnRanks
from ddp_conformance.determinism.subjects import Leg, Watch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pytest_ddp import Ddp


def refuses(case: Case, leg: Leg, watch: Watch) -> None:
    """Rank 1 ends its group before it raises."""
    model = DistributedDataParallel(nn.Linear(1, 1))
    if case.rank == 1:
        dist.destroy_process_group()
        raise ValueError(f"no {type(model)}")
    dist.barrier()


@pytest.mark.ddp(world_size=2)
def test_a_rank_that_ends_its_group_and_refuses_lets_its_peer_go(ddp: Ddp, tmp_path: Path) -> None:
    loop = LoopOnRanks(TrainLoop(refuses), Case(4, ddp.rank, 2, tmp_path), ddp)
    *_, seen = loop.attempt("resumed", Leg(1), 0)
    assert isinstance(seen, LoopRaised)
    assert seen.error.startswith("ValueError" if ddp.rank == 1 else "RuntimeError")
