"""Which machine each rank is on, and plans over machines that may have unlike numbers of GPUs."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pytest_ddp.extensions.machines.rank_layout import (
    MachineGpus,
    SeveralMachines,
    all_room,
    place_by_room,
    place_ranks,
)
from pytest_ddp.settings.plan import LaunchPlan, make_plan
from tests.unit.settings.test_plan import OPTIONS, item, mark


@pytest.mark.parametrize(
    ("world_size", "asked", "nodes", "most", "expected"),
    [
        (4, None, 2, None, (0, 0, 1, 1)),
        (5, None, 2, None, (0, 0, 0, 1, 1)),
        (2, None, 2, None, (0, 1)),
        (1, None, 2, None, (0,)),
        (2, None, 3, None, (0, 1)),
        (4, 1, 2, None, (0, 0, 0, 0)),
        (4, 2, 3, None, (0, 0, 1, 1)),
        (4, None, 2, 4, (0, 0, 0, 0)),
        (4, None, 2, 3, (0, 0, 0, 1)),
        (4, None, 4, 2, (0, 0, 1, 1)),
        (4, 2, 2, 3, (0, 0, 1, 1)),
        (8, 3, 3, 3, (0, 0, 0, 1, 1, 1, 2, 2)),
        (128, None, 16, None, tuple(rank // 8 for rank in range(128))),
        (128, None, 2, None, (0,) * 64 + (1,) * 64),
    ],
)
def test_ranks_fill_machines_in_order(
    world_size: int, asked: int | None, nodes: int, most: int | None, expected: tuple[int, ...]
) -> None:
    assert place_ranks(world_size, asked, nodes, most) == expected


@pytest.mark.parametrize(
    ("world_size", "asked", "nodes", "most", "words"),
    [
        (4, 3, 2, None, "nodes=3: 3 machines needed, 2 in this session"),
        (9, None, 2, 4, "9 ranks, at most 4 on one: 3 machines needed, 2 in this session"),
        (129, None, 2, None, "129 ranks, at most 64 on one: 3 machines needed, 2 in this session"),
        (8, 1, 2, 4, "nodes=1: 8 ranks on one machine needed, at most 4 allowed"),
    ],
)
def test_too_few_machines_are_an_error_with_the_numbers(
    world_size: int, asked: int, nodes: int, most: int | None, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        place_ranks(world_size, asked, nodes, most)


@pytest.mark.parametrize(
    ("world_size", "asked", "room", "most", "expected"),
    [
        (4, None, (2, 2), None, (0, 0, 1, 1)),
        (4, None, (4, 4), None, (0, 0, 1, 1)),
        (5, None, (4, 4), None, (0, 0, 0, 1, 1)),
        (2, None, (4, 1), None, (0, 1)),
        (3, None, (4, 1), None, (0, 0, 1)),
        (5, None, (4, 1), None, (0, 0, 0, 0, 1)),
        (5, None, (1, 4), None, (0, 1, 1, 1, 1)),
        (7, None, (1, 4, 2), None, (0, 1, 1, 1, 1, 2, 2)),
        (6, None, (1, 4, 2), None, (0, 1, 1, 1, 2, 2)),
        (2, None, (0, 4), None, (1, 1)),
        (3, None, (0, 4, 2), None, (1, 1, 2)),
        (2, None, (1, 1, 4), None, (0, 1)),
        (4, 1, (4, 8), None, (0, 0, 0, 0)),
        (5, 1, (4, 8), None, (1, 1, 1, 1, 1)),
        (2, 1, (0, 2), None, (1, 1)),
        (4, 2, (1, 0, 2, 2), None, (2, 2, 3, 3)),
        (3, 2, (1, 0, 2, 2), None, (0, 2, 2)),
        (4, None, (8, 8), 3, (0, 0, 0, 1)),
        (4, None, (2, 8), 3, (0, 0, 1, 1)),
        (4, None, (1, 1, 8), 3, (0, 1, 2, 2)),
        (6, 2, (8, 8), 3, (0, 0, 0, 1, 1, 1)),
        (100, None, (80, 80), None, (0,) * 50 + (1,) * 50),
        (5, None, (4, 0), None, None),
        (6, None, (4, 1), None, None),
        (5, 1, (4, 4), None, None),
        (2, 2, (4, 0), None, None),
        (7, None, (8, 8), 3, None),
        (130, None, (80, 80), None, None),
    ],
)
def test_ranks_go_where_there_is_room(
    world_size: int,
    asked: int | None,
    room: tuple[int, ...],
    most: int | None,
    expected: tuple[int, ...] | None,
) -> None:
    assert place_by_room(world_size, asked, room, most) == expected


@given(
    world_size=st.integers(1, 40),
    room=st.lists(st.integers(0, 12), min_size=1, max_size=5),
    asked=st.none() | st.integers(1, 5),
    most=st.none() | st.integers(1, 12),
)
def test_no_machine_gets_more_than_it_has_room_for(
    world_size: int, room: list[int], asked: int | None, most: int | None
) -> None:
    assume(asked is None or asked <= world_size)
    limits = [min(size, most or size) for size in room]
    largest = sorted(limits, reverse=True)[: asked or len(room)]
    fits = sum(largest) >= world_size and largest.count(0) in ((0,) if asked else range(9))
    fits = fits and len(largest) == (asked or len(room))
    nodes = place_by_room(world_size, asked, room, most)
    assert (nodes is not None) == fits
    if nodes is not None:
        assert len(nodes) == world_size
        assert list(nodes) == sorted(nodes)
        assert all(nodes.count(node) <= limit for node, limit in enumerate(limits))
        assert asked is None or len({*nodes}) == asked


@pytest.mark.parametrize(
    ("asked", "room", "most", "expected"),
    [
        (None, (4, 1, 0), None, 5),
        (None, (4, 1, 0), 3, 4),
        (1, (0, 4, 1), None, 4),
        (2, (0, 4, 1), None, 5),
        (3, (0, 4, 1), None, 0),
        (None, (80, 1), None, 65),
    ],
)
def test_all_room(
    asked: int | None, room: tuple[int, ...], most: int | None, expected: int
) -> None:
    assert all_room(asked, room, most) == expected


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


def test_more_ranks_than_one_machine_takes_are_spread() -> None:
    got = plan(128, (0,) * 16)
    assert (got.skip, got.nodes[::8], len(got.seeds)) == (None, tuple(range(16)), 128)
    words = "129 ranks, at most 64 on one: 3 machines needed, 2 in this session"
    assert plan(129, (0, 0)).skip == words
