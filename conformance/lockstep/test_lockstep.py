"""The lockstep of collectives on real ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ddp_conformance.lockstep.lockstep import END, Lockstep, description, in_lockstep
from ddp_conformance.writing.arriving import Arriving
from torch.distributed import new_group as early
from torch.distributed.device_mesh import init_device_mesh

from pytest_ddp import Ddp
from pytest_ddp.rank.operations.table import BY_METHOD

ONE = torch.tensor(1.0)


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
    assert lockstep.calls[0].what == "allreduce SUM float32[1]"
    assert "test_lockstep.py:" in lockstep.calls[0].site


@pytest.mark.ddp(world_size=2)
def test_a_missing_collective_ends_all_at_once(ddp: Ddp) -> None:
    lockstep = Lockstep(ddp)
    with in_lockstep(lockstep):
        if ddp.rank == 0:
            dist.all_reduce(torch.ones(2))
            pytest.fail("rank 1 never comes")
    assert lockstep.diverged
    assert lockstep.calls[-1].what == ("allreduce SUM float32[2]" if ddp.rank == 0 else END)


@pytest.mark.ddp(world_size=2)
def test_different_sizes_never_reach_gloo(ddp: Ddp) -> None:
    lockstep = Lockstep(ddp)
    with in_lockstep(lockstep):
        dist.all_reduce(torch.ones(1 + ddp.rank))
    assert lockstep.diverged


@pytest.mark.ddp(world_size=2)
def test_reduce_operations_and_roots_that_differ_are_never_started(ddp: Ddp) -> None:
    one = torch.ones(1)
    ops, root = (dist.ReduceOp.SUM, dist.ReduceOp.MAX), ddp.rank
    for differ in (
        lambda: dist.all_reduce(one, ops[ddp.rank]),
        lambda: dist.reduce(one, 0, ops[ddp.rank]),
        lambda: dist.reduce_scatter(one, [one, one], ops[ddp.rank]),
        lambda: dist.reduce(one, root),
        lambda: dist.broadcast(one, root),
        lambda: dist.broadcast_object_list([17], root),
        lambda: dist.gather(one, [one, one], root),
        lambda: dist.scatter(one, [one, one], root),
    ):
        lockstep = Lockstep(ddp)
        with in_lockstep(lockstep):
            differ()
        assert lockstep.diverged


OPS = {"SUM": dist.ReduceOp.SUM, "AVG": dist.ReduceOp(dist.ReduceOp.AVG)}


def described(method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    return description(method, BY_METHOD[method], args, kwargs)


@pytest.mark.parametrize("op", OPS)
def test_a_reduce_operation_has_its_name(op: str) -> None:
    options = dist.AllreduceOptions()
    options.reduceOp = OPS[op]
    for args, kwargs in (
        (([ONE], options), {}),
        (([ONE],), {"opts": options}),
        (([ONE], OPS[op]), {}),
    ):
        assert described("allreduce", args, kwargs) == f"allreduce {op} float32[]"
    assert described("allreduce", ([ONE],), {}) == "allreduce SUM float32[]"


def test_factors_of_a_scaled_sum_are_each_ranks_own() -> None:
    scaled = dist._make_nccl_premul_sum
    for op in (scaled(0.5), scaled(torch.tensor([2.0]))):
        assert described("allreduce", ([ONE], op), {}) == "allreduce PREMUL_SUM float32[]"


def test_a_root_has_its_number() -> None:
    assert described("broadcast", ([ONE],), {}) == "broadcast root=0 float32[]"
    assert described("broadcast", (ONE, 2), {}) == "broadcast root=2 float32[]"
    assert described("reduce", (ONE, 1, OPS["AVG"]), {}) == "reduce AVG root=1 float32[]"


@pytest.mark.ddp(world_size=2)
def test_functional_collectives_are_described_as_those_that_they_pair_with(ddp: Ddp) -> None:
    one, four, name = torch.ones(1), torch.ones(4, 2), dist.group.WORLD.group_name
    of = torch.ops._c10d_functional
    lockstep = Lockstep(ddp)
    with in_lockstep(lockstep):
        for result in (
            of.all_reduce(one, "max", name),
            *of.all_reduce_coalesced([one, four], "sum", name),
            of.broadcast(one, 1, name),
            of.all_gather_into_tensor(four, 2, name),
            of.reduce_scatter_tensor(four, "sum", 2, name),
            of.all_to_all_single(four, [2, 2], [2, 2], name),
        ):
            of.wait_tensor(result)
    assert [call.what for call in lockstep.calls] == [
        "allreduce MAX float32[1]",
        "allreduce_coalesced SUM float32[1] float32[4, 2]",
        "broadcast root=1 float32[1]",
        "allgather_base float32[4, 2]",
        "reduce_scatter_base SUM float32[2, 2]",
        "alltoall_base",
        END,
    ]


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


MAKERS: dict[str, Callable[[], object]] = {
    "new_group": lambda: dist.new_group([0]),
    "imported by name": lambda: early([0]),
    "subgroups": lambda: dist.new_subgroups(1),
    "a mesh of two dimensions": lambda: init_device_mesh("cpu", (2, 1), mesh_dim_names=("a", "b")),
}


@pytest.mark.ddp(world_size=2)
@pytest.mark.parametrize("maker", list(MAKERS))
def test_a_group_is_made_by_all_ranks_or_by_none(ddp: Ddp, maker: str) -> None:
    lockstep = Lockstep(ddp)
    with in_lockstep(lockstep):
        if ddp.rank == 0:
            MAKERS[maker]()
            pytest.fail("rank 1 never comes")
    assert lockstep.diverged
    assert lockstep.calls[-1].what == ("new_group" if ddp.rank == 0 else END)


@pytest.mark.ddp(world_size=2)
@pytest.mark.parametrize("maker", list(MAKERS))
def test_a_group_that_all_ranks_make_goes_through(ddp: Ddp, maker: str) -> None:
    lockstep = Lockstep(ddp)
    with in_lockstep(lockstep):
        MAKERS[maker]()
    assert not lockstep.diverged
    for group in [*dist.distributed_c10d._world.pg_map][1:]:
        dist.destroy_process_group(group)


@pytest.mark.ddp(world_size=2)
def test_a_group_may_be_made_by_its_members_alone(ddp: Ddp) -> None:
    lockstep = Lockstep(ddp)
    with in_lockstep(lockstep):
        if ddp.rank == 0:
            dist.destroy_process_group(dist.new_group([0], use_local_synchronization=True))
    assert [call.what for call in lockstep.calls] == [END]


@pytest.mark.ddp(world_size=3)
@pytest.mark.parametrize("missing", [False, True])
def test_members_of_a_group_wait_for_one_that_may_come(
    ddp: Ddp, missing: bool, tmp_path: Path
) -> None:
    """Rank 0 waits for rank 1, which waits for rank 2, which has left: none of them waits on."""
    groups = [dist.new_group(list(ranks)) for ranks in ((0, 1), (1, 2))]
    arriving = Arriving(ddp, tmp_path)
    lockstep = Lockstep(arriving, arriving.meet)
    with in_lockstep(lockstep):
        if ddp.rank > 0 and not (missing and ddp.rank == 2):
            dist.barrier(group=groups[1])
        if ddp.rank < 2:
            dist.barrier(group=groups[0])
    assert lockstep.diverged == missing
    last = ["barrier of ranks 0 and 1", "barrier of ranks 1 and 2", END] if missing else [END] * 3
    assert [call.what for call in lockstep.calls] == [last[ddp.rank]]
    for group in groups:
        dist.destroy_process_group(group)
