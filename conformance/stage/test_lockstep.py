"""The lockstep of collectives on real ranks."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from ddp_conformance.stage.lockstep import END, Lockstep, in_lockstep

from pytest_ddp import Ddp


@pytest.mark.ddp(world_size=2)
def test_same_collectives_go_through(ddp: Ddp) -> None:
    lockstep = Lockstep(ddp)
    parts = [None, None]
    with in_lockstep(lockstep):
        total = torch.tensor([float(ddp.rank)])
        dist.all_reduce(total)
        dist.all_gather_object(parts, ddp.rank)
        if ddp.rank == 0:
            dist.send(total, 1)
        else:
            dist.recv(total, 0)
        dist.barrier()
    assert (total.item(), parts) == (1.0, [0, 1])
    words = [call.what.partition(" ")[0] for call in lockstep.calls]
    assert words == ["allreduce", "allgather", "allgather", "barrier", "no"]
    assert lockstep.calls[0].what == "allreduce float32[1]"
    assert "test_lockstep.py:" in lockstep.calls[0].site


@pytest.mark.ddp(world_size=2)
def test_a_missing_collective_ends_all_at_once(ddp: Ddp) -> None:
    lockstep = Lockstep(ddp)
    with in_lockstep(lockstep):
        if ddp.rank == 0:
            dist.all_reduce(torch.ones(2))
            pytest.fail("rank 1 never comes")
    assert lockstep.diverged
    assert lockstep.calls[-1].what == ("allreduce float32[2]" if ddp.rank == 0 else END)


@pytest.mark.ddp(world_size=2)
def test_different_sizes_never_reach_gloo(ddp: Ddp) -> None:
    lockstep = Lockstep(ddp)
    with in_lockstep(lockstep):
        dist.all_reduce(torch.ones(1 + ddp.rank))
    assert lockstep.diverged


@pytest.mark.ddp(world_size=2)
def test_an_exception_comes_out_and_frees_the_others(ddp: Ddp) -> None:
    lockstep = Lockstep(ddp)

    def body() -> None:
        with in_lockstep(lockstep):
            if ddp.rank == 1:
                raise LookupError("no such shard")
            dist.barrier()

    if ddp.rank == 1:
        with pytest.raises(LookupError, match="no such shard"):
            body()
    else:
        body()
    assert lockstep.diverged


@pytest.mark.ddp(world_size=2)
def test_groups_of_some_ranks_go_through(ddp: Ddp) -> None:
    alone = [dist.new_group([rank]) for rank in range(2)][ddp.rank]
    lockstep = Lockstep(ddp)
    with in_lockstep(lockstep):
        if ddp.rank == 0:
            dist.all_reduce(torch.ones(1), group=alone)
    dist.destroy_process_group(alone)
    assert [call.what for call in lockstep.calls] == [END]


@pytest.mark.ddp(world_size=2)
def test_what_is_raised_for_being_cut_off_is_no_answer(ddp: Ddp) -> None:
    lockstep = Lockstep(ddp)
    with in_lockstep(lockstep):
        if ddp.rank == 0:
            try:
                dist.barrier()
            except RuntimeError as error:
                raise ValueError("a peer has failed") from error
    assert lockstep.diverged
