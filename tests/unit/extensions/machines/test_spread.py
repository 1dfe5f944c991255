"""Plans over machines that may have unlike numbers of GPUs."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from pytest_ddp.extensions.machines.rank_layout import MachineGpus, SeveralMachines
from pytest_ddp.settings.plan import LaunchPlan, make_plan
from tests.unit.settings.test_plan import OPTIONS, item, mark

NAMES = ("alpha", "beta", "gamma", "delta")


def plan(world_size: Any, counts: tuple[Any, ...], options: Any = (), **marked: Any) -> LaunchPlan:
    """Over machines with so many GPUs, of CUDA unless a pair has another kind."""
    machines = []
    for node, count in enumerate(counts):
        number, kind = count if isinstance(count, tuple) else (count, "cuda")
        machines.append(MachineGpus(f"node {node} ({NAMES[node % len(NAMES)]})", number, kind))
    own = dict(options)
    layout = SeveralMachines(lambda: machines, own.pop("ranks_per_machine", None))
    of_core = dataclasses.replace(OPTIONS, **own)
    return make_plan(item(), mark(world_size, **marked), of_core, layout)


CUDA = {"device": "cuda", "backend": "gloo"}


@pytest.mark.parametrize(
    ("world_size", "counts", "marked", "nodes", "devices", "backend"),
    [
        (4, (2, 2), {}, (0, 0, 1, 1), (0, 1, 0, 1), "nccl"),
        (5, (4, 1), {}, (0, 0, 0, 0, 1), (0, 1, 2, 3, 0), "nccl"),
        (2, (0, 4), {}, (1, 1), (0, 1), "nccl"),
        (2, (4, 1), {"nodes": 1}, (0, 0), (0, 1), "nccl"),
        (2, (1, 4), {"nodes": 1}, (1, 1), (0, 1), "nccl"),
        (6, (4, 1), {}, (0, 0, 0, 1, 1, 1), None, "gloo"),
        (2, (4, 0), {"nodes": 2}, (0, 1), None, "gloo"),
        (4, (0, 0), {}, (0, 0, 1, 1), None, "gloo"),
        (4, (8, 8), {"device": "cpu"}, (0, 0, 1, 1), None, "gloo"),
        (4, (8, 8), {"device": "meta"}, (0, 0, 1, 1), None, "gloo"),
        (4, (1, 8), {"backend": "gloo"}, (0, 0, 1, 1), None, "gloo"),
        (5, (4, 1), CUDA, (0, 0, 0, 0, 1), (0, 1, 2, 3, 0), "gloo"),
        (6, (2, 1), {"ranks_per_gpu": 2}, (0, 0, 0, 0, 1, 1), (0, 0, 1, 1, 0, 0), "gloo"),
        (4, (2, 1), {"ranks_per_gpu": 2}, (0, 0, 1, 1), (0, 0, 0, 0), "gloo"),
        (4, ((2, "xpu"), (2, "xpu")), {}, (0, 0, 1, 1), None, "gloo"),
        (3, ((2, "xpu"), (1, "xpu")), {"backend": "xccl"}, (0, 0, 1), (0, 1, 0), "xccl"),
        ("gpus", (3, 1), {}, (0, 0, 0, 1), (0, 1, 2, 0), "nccl"),
        ("gpus", (3, 1), {"nodes": 1}, (0, 0, 0), (0, 1, 2), "nccl"),
        ("gpus", (0, 1), {"nodes": 1}, (1,), (0,), "nccl"),
        ("gpus", (2, 1), {"ranks_per_gpu": 2}, (0, 0, 0, 0, 1, 1), (0, 0, 1, 1, 0, 0), "gloo"),
        ("gpus", (3, 1), {"backend": "gloo"}, (0, 0, 0, 1), None, "gloo"),
    ],
)
def test_where_ranks_are(
    world_size: Any, counts: Any, marked: Any, nodes: Any, devices: Any, backend: str
) -> None:
    got = plan(world_size, counts, **marked)
    assert got.skip is None
    assert (got.nodes, got.devices, got.backend) == (nodes, devices, backend)
    assert got.world_size == len(got.seeds) == len(nodes)


def test_ranks_for_each_machine_by_option() -> None:
    got = plan(3, (4, 4), {"ranks_per_machine": 2}, backend="nccl")
    assert (got.nodes, got.devices) == ((0, 0, 1), (0, 1, 0))
    assert plan("gpus", (4, 1), {"ranks_per_machine": 2}).nodes == (0, 0, 1)


@pytest.mark.parametrize(
    ("world_size", "counts", "options", "marked", "skip"),
    [
        (
            *(6, (4, 1), {}, {"backend": "nccl"}),
            "NCCL needs a GPU for each rank: 6 needed, 4 on node 0 (alpha), 1 on node 1 (beta); "
            "ranks_per_gpu=2 lets ranks share them",
        ),
        (
            *(5, (4, 1), {}, {"backend": "nccl", "nodes": 1}),
            "NCCL needs a GPU for each rank: 5 needed on one machine (nodes=1), 4 on node 0 "
            "(alpha), 1 on node 1 (beta); ranks_per_gpu=2 lets ranks share them",
        ),
        (
            *(2, (4, 0, 0), {}, {"backend": "nccl", "nodes": 2}),
            "NCCL needs a GPU for each rank: 2 needed on 2 machines (nodes=2), 4 on node 0 "
            "(alpha), 0 on node 1 (beta), 0 on node 2 (gamma)",
        ),
        (
            *(6, (4, 1), {"ranks_per_machine": 3}, {"backend": "nccl"}),
            "NCCL needs a GPU for each rank: 6 needed, 4 on node 0 (alpha), 1 on node 1 (beta); "
            "at most 3 ranks on each (--ddp-ranks-per-machine); ranks_per_gpu=3 lets ranks share "
            "them",
        ),
        (
            *(6, (4, 1), {}, CUDA),
            "device='cuda' is a GPU for each rank: 6 needed, 4 on node 0 (alpha), 1 on node 1 "
            "(beta); ranks_per_gpu=2 lets ranks share them",
        ),
        (
            *(6, (0, 0), {}, CUDA),
            "device='cuda' is a GPU for each rank: 6 needed, 0 on node 0 (alpha), 0 on node 1 "
            "(beta)",
        ),
        (
            *(7, (2, 1), {}, {"ranks_per_gpu": 2}),
            "device='cuda' for 7 ranks, at most 2 on one: 4 needed, 2 on node 0 (alpha), 1 on "
            "node 1 (beta)",
        ),
        (
            *(4, ((2, "cuda"), (2, "xpu")), {}, {"backend": "nccl"}),
            "NCCL needs a GPU for each rank: 4 needed, 2 on node 0 (alpha), 2 of another kind "
            "(xpu) on node 1 (beta); ranks_per_gpu=2 lets ranks share them",
        ),
        (
            *("gpus", (0, 0), {}, {}),
            "world_size='gpus' is a rank for each GPU: 0 on node 0 (alpha), 0 on node 1 (beta)",
        ),
        (
            *("gpus", (2, 0), {}, {"nodes": 2}),
            "world_size='gpus' is a rank for each GPU of 2 machines (nodes=2): 2 on node 0 "
            "(alpha), 0 on node 1 (beta)",
        ),
        (
            *("gpus", (2, 2), {}, {"nodes": 3}),
            "nodes=3: 3 machines needed, 2 in this session",
        ),
        (
            *(4, (2, 2), {}, {"nodes": 3, "backend": "nccl"}),
            "nodes=3: 3 machines needed, 2 in this session",
        ),
    ],
)
def test_too_few_are_a_skip_with_the_numbers_of_each_machine(
    world_size: Any, counts: Any, options: Any, marked: Any, skip: str
) -> None:
    assert plan(world_size, counts, options, **marked).skip == skip


def test_a_test_is_never_run_on_fewer_ranks_than_it_asks_for() -> None:
    got = plan(6, (4, 1), backend="nccl")
    assert got.world_size == 6


def test_more_ranks_than_one_machine_takes_are_spread() -> None:
    got = plan(128, (0,) * 16)
    assert (got.skip, got.nodes[::8], len(got.seeds)) == (None, tuple(range(16)), 128)
    words = "129 ranks, at most 64 on one: 3 machines needed, 2 in this session"
    assert plan(129, (0, 0)).skip == words


def test_fewer_machines_than_so_many_ranks_need_contradict_the_mark() -> None:
    with pytest.raises(pytest.UsageError, match=r"nodes=2, world_size=129"):
        plan(129, (0,) * 4, nodes=2)
