"""The plan of a test, from its item, mark and options alone."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddp.settings.layout import OneMachine
from pytest_ddp.settings.mark import WORLD_SIZE_PARAM, Mark
from pytest_ddp.settings.options import Options, Output, StartMethod
from pytest_ddp.settings.plan import LaunchPlan, make_plan

OPTIONS = Options(
    backend="auto",
    world_size=2,
    timeout=300.0,
    start_method=StartMethod.FORK,
    isolate=False,
    seed=0,
    output=Output.FAILED,
)
NODEID = "tests/test_a.py::test_a"


def item(nodeid: str = NODEID, *fixtures: str, **params: Any) -> pytest.Item:
    """The part of an item that a plan reads."""
    fake = SimpleNamespace(nodeid=nodeid, fixturenames=list(fixtures))
    if params:
        fake.callspec = SimpleNamespace(params=params)
    return cast(pytest.Item, fake)


def mark(*world_sizes: Any, listed: bool = False, **arguments: Any) -> Mark:
    return Mark(world_sizes=world_sizes or (2,), listed=listed, **arguments)


def plan(of: Mark, gpus: int = 0, nodeid: str = NODEID, **options: Any) -> LaunchPlan:
    return make_plan(item(nodeid), of, dataclasses.replace(OPTIONS, **options), OneMachine(gpus))


def test_a_bare_mark_takes_everything_from_the_options() -> None:
    got = plan(mark(2), timeout=20.0, isolate=True, seed=3)
    assert got == LaunchPlan(
        nodeid=NODEID,
        world_size=2,
        backend="gloo",
        device="cpu",
        devices=None,
        ranks_per_gpu=1,
        init=True,
        isolate=True,
        module_state="",
        timeout=20.0,
        seeds=got.seeds,
        env={},
        check_collectives=True,
        skip=None,
    )


def test_a_mark_wins_over_the_options() -> None:
    marked = mark(
        3, backend="gloo", init=False, isolate=False, timeout=1.0, env=(("A", "1"), ("B", "2"))
    )
    got = plan(marked, gpus=8, backend="nccl", isolate=True)
    assert (got.world_size, got.backend, got.devices) == (3, "gloo", None)
    assert (got.init, got.isolate, got.timeout) == (False, False, 1.0)
    assert got.env == {"A": "1", "B": "2"}


@pytest.mark.parametrize(
    ("option", "marked", "gpus", "expected"),
    [
        ("auto", None, 0, "gloo"),
        ("auto", None, 3, "gloo"),
        ("auto", None, 4, "nccl"),
        ("auto", None, 5, "nccl"),
        ("gloo", None, 8, "gloo"),
        ("nccl", None, 4, "nccl"),
        ("nccl", "auto", 3, "gloo"),
        ("gloo", "auto", 4, "nccl"),
        ("gloo", "nccl", 4, "nccl"),
    ],
)
def test_backend_and_devices(option: str, marked: Any, gpus: int, expected: str) -> None:
    got = plan(mark(4, backend=marked), gpus=gpus, backend=option)
    assert got.backend == expected
    assert got.devices == ((0, 1, 2, 3) if expected == "nccl" else None)
    assert got.skip is None


@pytest.mark.parametrize("where", ["mark", "option"])
def test_too_few_gpus_for_an_explicit_nccl_is_a_skip(where: str) -> None:
    if where == "mark":
        got = plan(mark(4, backend="nccl"), gpus=1)
    else:
        got = plan(mark(4), gpus=1, backend="nccl")
    assert got.skip == (
        "NCCL needs a GPU for each rank: 4 needed, 1 found usable by torch; "
        "ranks_per_gpu=4 lets ranks share one"
    )
    assert got.world_size == 4


@pytest.mark.parametrize("backend", ["auto", "gloo", "nccl"])
def test_a_rank_for_each_gpu(backend: str) -> None:
    got = plan(mark("gpus"), gpus=3, backend=backend)
    assert got.world_size == len(got.seeds) == 3
    assert got.backend == ("gloo" if backend == "gloo" else "nccl")
    assert got.skip is None


@pytest.mark.parametrize("backend", ["auto", "gloo", "nccl"])
def test_a_rank_for_each_gpu_without_gpus_is_a_skip(backend: str) -> None:
    got = plan(mark("gpus"), gpus=0, backend=backend)
    assert got.skip == "world_size='gpus' is a rank for each GPU: 0 found usable by torch"
    assert got.seeds == ()


def test_more_gpus_than_ranks_are_allowed() -> None:
    assert plan(mark("gpus"), gpus=100).world_size == 64


# ---------------------------------------------------------------------- devices


@pytest.mark.parametrize(
    ("marked", "options", "gpus", "expected"),
    [
        ({}, {}, 0, ("gloo", "cpu", None)),
        ({"device": "cuda"}, {}, 4, ("nccl", "cuda", (0, 1, 2, 3))),
        ({"device": "cuda", "backend": "gloo"}, {}, 4, ("gloo", "cuda", (0, 1, 2, 3))),
        ({"device": "cuda"}, {"backend": "gloo"}, 4, ("gloo", "cuda", (0, 1, 2, 3))),
        ({"ranks_per_gpu": 4}, {}, 1, ("gloo", "cuda", (0, 0, 0, 0))),
        ({"ranks_per_gpu": 3}, {}, 2, ("gloo", "cuda", (0, 0, 0, 1))),
        ({"device": "cuda", "ranks_per_gpu": 2}, {}, 2, ("gloo", "cuda", (0, 0, 1, 1))),
        ({}, {"ranks_per_gpu": 2}, 2, ("gloo", "cuda", (0, 0, 1, 1))),
        ({"backend": "nccl"}, {"ranks_per_gpu": 2}, 4, ("nccl", "cuda", (0, 0, 1, 1))),
        ({"backend": "nccl", "ranks_per_gpu": 4}, {}, 1, ("nccl", "cuda", (0, 0, 0, 0))),
        ({}, {"backend": "nccl", "ranks_per_gpu": 2}, 2, ("nccl", "cuda", (0, 0, 1, 1))),
        ({"device": "cpu"}, {"ranks_per_gpu": 2}, 4, ("gloo", "cpu", None)),
        ({"device": "cpu"}, {}, 8, ("gloo", "cpu", None)),
        ({"device": "meta"}, {}, 8, ("gloo", "meta", None)),
        ({}, {"device": "cpu"}, 8, ("gloo", "cpu", None)),
        ({}, {"device": "cuda"}, 8, ("nccl", "cuda", (0, 1, 2, 3))),
        ({"backend": "nccl"}, {"device": "cpu"}, 4, ("nccl", "cuda", (0, 1, 2, 3))),
        ({"backend": "gloo"}, {}, 8, ("gloo", "cpu", None)),
        (
            {"backend": "cpu:gloo,cuda:nccl"},
            {},
            4,
            ("cpu:gloo,cuda:nccl", "cuda", (0, 1, 2, 3)),
        ),
        ({"backend": "cpu:gloo"}, {}, 4, ("cpu:gloo", "cpu", None)),
        ({"backend": "own"}, {}, 4, ("own", "cpu", None)),
        ({"backend": "own", "device": "cuda"}, {}, 4, ("own", "cuda", (0, 1, 2, 3))),
    ],
)
def test_what_ranks_work_on(marked: Any, options: Any, gpus: int, expected: Any) -> None:
    got = plan(mark(4, **marked), gpus=gpus, **options)
    assert (got.backend, got.device, got.devices) == expected
    assert got.skip is None
    assert got.world.device == got.device


@pytest.mark.parametrize(
    ("marked", "gpus", "skip"),
    [
        (
            {"device": "cuda", "backend": "gloo"},
            1,
            "device='cuda' is a GPU for each rank: 4 needed, 1 found usable by torch; "
            "ranks_per_gpu=4 lets ranks share one",
        ),
        (
            {"device": "cuda", "backend": "gloo"},
            0,
            "device='cuda' is a GPU for each rank: 4 needed, 0 found usable by torch",
        ),
        (
            {"ranks_per_gpu": 2},
            1,
            "device='cuda' for 4 ranks, at most 2 on one: 2 needed, 1 found usable by torch",
        ),
        (
            {"backend": "cpu:gloo,cuda:nccl"},
            2,
            "NCCL needs a GPU for each rank: 4 needed, 2 found usable by torch; "
            "ranks_per_gpu=4 lets ranks share one",
        ),
        (
            {"backend": "nccl", "ranks_per_gpu": 2},
            1,
            "device='cuda' for 4 ranks, at most 2 on one: 2 needed, 1 found usable by torch",
        ),
        (
            {"device": "xpu"},
            8,
            "XCCL needs an XPU for each rank: 4 needed, 0 found usable by torch",
        ),
    ],
)
def test_too_few_devices_are_a_skip(marked: Any, gpus: int, skip: str) -> None:
    assert plan(mark(4, **marked), gpus=gpus).skip == skip


def test_xpus_are_no_gpus_of_cuda() -> None:
    def on_xpus(of: Mark) -> LaunchPlan:
        return make_plan(item(), of, OPTIONS, OneMachine(4, "xpu"))

    assert on_xpus(mark(4, backend="xccl")).devices == (0, 1, 2, 3)
    assert on_xpus(mark(4)).backend == "gloo"  # what auto would get there, nobody has tried
    nccl = on_xpus(mark(4, backend="nccl"))
    assert nccl.skip == "NCCL needs a GPU for each rank: 4 needed, 0 found usable by torch"


def test_several_ranks_for_each_gpu() -> None:
    got = plan(mark("gpus", ranks_per_gpu=3), gpus=2)
    assert (got.world_size, got.devices) == (6, (0, 0, 0, 1, 1, 1))


@pytest.mark.parametrize(
    ("marked", "options", "fix"),
    [
        ({"device": "cpu", "backend": "nccl"}, {}, "nccl needs cuda devices. Write backend='gloo'"),
        ({"device": "cpu"}, {"backend": "nccl"}, "nccl needs cuda devices. Write backend='gloo'"),
        ({"device": "xpu", "backend": "cpu:gloo,cuda:nccl"}, {}, "nccl needs cuda devices"),
        ({"device": "meta", "ranks_per_gpu": 2}, {}, "Remove ranks_per_gpu"),
        ({"backend": "xccl", "ranks_per_gpu": 2}, {}, "xccl refuses two ranks on one GPU"),
        ({"ranks_per_gpu": 2}, {"backend": "xccl"}, "Write backend='gloo'"),
    ],
)
def test_what_contradicts_itself(marked: Any, options: Any, fix: str) -> None:
    with pytest.raises(pytest.UsageError) as caught:
        plan(mark(4, **marked), **options)
    text = " ".join(str(caught.value).split())
    assert text.startswith(f"{NODEID} @pytest.mark.ddp: ")
    assert fix in text


# --------------------------------------------------------- lists of world sizes


def listed(size: Any, *sizes: Any) -> LaunchPlan:
    parametrized = item(f"{NODEID}[ws{size}]", **{WORLD_SIZE_PARAM: size, "other": 9})
    return make_plan(parametrized, mark(*sizes, listed=True), OPTIONS, OneMachine(3))


def test_a_listed_world_size_comes_from_the_parameter() -> None:
    assert listed(1, 1, 2, 4).world_size == 1
    assert listed(4, 1, 2, 4).world_size == 4
    assert listed("gpus", 1, "gpus").world_size == 3


def test_other_parameters_do_not_matter() -> None:
    assert make_plan(item(NODEID, world_size=7), mark(2), OPTIONS, OneMachine(0)).world_size == 2


@pytest.mark.parametrize(
    ("parameters", "marked"),
    [
        ({}, mark(1, 2, listed=True)),
        ({WORLD_SIZE_PARAM: 1}, mark(4)),
        ({WORLD_SIZE_PARAM: 1}, mark(2, 4, listed=True)),
    ],
)
def test_a_mark_that_came_after_the_parametrization(parameters: Any, marked: Mark) -> None:
    with pytest.raises(pytest.UsageError) as caught:
        make_plan(item(NODEID, **parameters), marked, OPTIONS, OneMachine(0))
    lines = str(caught.value).splitlines()
    assert lines[0] == NODEID
    assert "4" in lines[1] or "[1, 2]" in lines[1]
    assert "Put the list into the mark of the function." in " ".join(str(caught.value).split())
    assert all(len(line) < 80 for line in lines)


# ------------------------------------------------------------------------ seeds

nodeids = st.text(min_size=1)
seeds = st.integers(0, 2**32 - 1)
sizes = st.integers(1, 64)


@given(nodeids, seeds, sizes)
def test_seeds_differ_between_ranks_and_fit_numpy(nodeid: str, seed: int, size: int) -> None:
    got = plan(mark(size), nodeid=nodeid, seed=seed).seeds
    assert len(set(got)) == len(got) == size
    assert all(0 <= value < 2**32 for value in got)


@given(nodeids, seeds, sizes)
def test_seeds_are_reproducible_and_a_rank_keeps_its_own(nodeid: str, seed: int, size: int) -> None:
    got = plan(mark(size), nodeid=nodeid, seed=seed).seeds
    assert got == plan(mark(64), nodeid=nodeid, seed=seed).seeds[:size]


@given(nodeids, seeds, sizes)
def test_same_seed_on_all_ranks(nodeid: str, seed: int, size: int) -> None:
    got = plan(mark(size, seed="same"), nodeid=nodeid, seed=seed).seeds
    assert got == plan(mark(size), nodeid=nodeid, seed=seed).seeds[:1] * size


@given(seeds, seeds)
def test_a_seed_in_the_mark_replaces_that_of_the_session(marked: int, session: int) -> None:
    got = plan(mark(2, seed=marked), seed=session)
    assert got.seeds == plan(mark(2), seed=marked).seeds


def test_seeds_follow_session_seed_and_test() -> None:
    base = plan(mark(4)).seeds
    assert not set(base) & set(plan(mark(4), seed=1).seeds)
    assert not set(base) & set(plan(mark(4), nodeid=NODEID + "[1]").seeds)


def test_seeds_wrap_around_where_numpy_has_no_more() -> None:
    assert plan(mark(9), seed=3505178).seeds == (*range(2**32 - 8, 2**32), 0)


def test_seeds_are_those_of_every_other_process() -> None:
    """A failure is reproduced in another interpreter, where strings hash otherwise."""
    assert plan(mark(2)).seeds == (0xB6ECCA49, 0xB6ECCA4A)


# --------------------------------------------------------------------- machines


def test_more_ranks_than_one_machine_takes_are_a_skip_without_machines() -> None:
    """No error: a suite with tests for a cluster is run on a laptop, too."""
    words = "128 ranks, at most 64 on one: 2 machines needed, this session has one"
    assert plan(mark(128)).skip == words
    assert plan(mark(64)).skip is None


def test_fewer_machines_than_so_many_ranks_need_contradict_the_mark() -> None:
    with pytest.raises(pytest.UsageError) as caught:
        plan(mark(129, nodes=2))
    text = " ".join(str(caught.value).split())
    assert "nodes=2, world_size=129): one machine takes 64 ranks at most" in text
    assert "Ask for 3 machines, or more." in text


def test_the_front_imports_no_torch() -> None:
    code = (
        "import sys, pytest_ddp.settings.plan, pytest_ddp.settings.options, pytest_ddp.launch.gpus;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
