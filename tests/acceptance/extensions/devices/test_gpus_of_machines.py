"""Ranks on the GPUs of two machines with unlike numbers of them, listed and never touched."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.acceptance.devices.standins import CONFTEST, variables_for
from tests.acceptance.extensions.machines.cluster import Cluster, Session
from tests.acceptance.suite import Suite, flat

SOURCE = """
    import os
    import socket

    import pytest
    import torch
    import torch.distributed as dist

    each_its_own = pytest.mark.ddp(device="cuda", backend="gloo", timeout=60)


    def places(ddp):
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == ddp.world_size
        assert torch.set_to == ddp.device.index
        assert os.environ["LOCAL_RANK"] == str(ddp.local_rank)
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        return ddp.gather((socket.gethostname(), str(ddp.device), ddp.local_rank, visible))


    ALPHA = [("alpha", f"cuda:{n}", n, None) for n in range(3)]
    BETA = ("beta", "cuda:0", 0, "1")


    @each_its_own
    @pytest.mark.ddp(world_size=2)
    def test_one_on_each(ddp):
        assert places(ddp) == [ALPHA[0], BETA]


    @each_its_own
    @pytest.mark.ddp(world_size=4)
    def test_where_there_is_room(ddp):
        assert places(ddp) == [*ALPHA, BETA]


    @each_its_own
    @pytest.mark.ddp(world_size=3, nodes=1)
    def test_on_one_machine(ddp):
        assert places(ddp) == ALPHA


    @each_its_own
    @pytest.mark.ddp(world_size="gpus")
    def test_all(ddp):
        assert places(ddp) == [*ALPHA, BETA]


    @pytest.mark.ddp(world_size="gpus", ranks_per_gpu=2)
    def test_two_on_each(ddp):
        on_alpha = [("alpha", f"cuda:{n // 2}", n, None) for n in range(6)]
        assert places(ddp) == [*on_alpha, BETA, ("beta", "cuda:0", 1, "1")]


    @pytest.mark.ddp(world_size=4, device="cpu")
    def test_cpu(ddp):
        assert [place[:2] for place in ddp.gather((socket.gethostname(), str(ddp.device)))] == [
            ("alpha", "cpu"), ("alpha", "cpu"), ("beta", "cpu"), ("beta", "cpu")
        ]


    @pytest.mark.ddp(world_size=5, timeout=60)
    def test_more_ranks_than_gpus(ddp):
        assert (ddp.backend, ddp.device.type) == ("gloo", "cpu")
        assert ddp.gather(socket.gethostname()) == ["alpha"] * 3 + ["beta"] * 2


    @pytest.mark.ddp(world_size=4)
    def test_auto(ddp): ...


    @pytest.mark.ddp(world_size=6, backend="nccl")
    def test_too_many(ddp): ...


    @each_its_own
    @pytest.mark.ddp(world_size=4, nodes=1)
    def test_too_many_on_one(ddp): ...


    @each_its_own
    @pytest.mark.ddp(world_size=3)
    def test_fails(ddp):
        assert ddp.device.index != 1
        dist.barrier()


    @each_its_own
    @pytest.mark.ddp(world_size=4)
    def test_dies(ddp):
        if ddp.rank == 3:
            os._exit(3)
        dist.barrier()


    class Broken:
        def query(self):
            raise RuntimeError("CUDA error: device-side assert triggered\\nCompile with ...")


    @each_its_own
    @pytest.mark.ddp(world_size=4)
    def test_breaks_it(ddp):
        if ddp.rank == 3:
            torch.cuda.is_initialized = lambda: True
            torch.cuda.current_stream = lambda: Broken()
            raise RuntimeError("CUDA error: device-side assert triggered")


    @each_its_own
    @pytest.mark.ddp(world_size=4)
    def test_after_it(ddp):
        assert not torch.cuda.is_initialized()
        assert places(ddp) == [*ALPHA, BETA]
"""

PASSED = [
    *("one_on_each", "where_there_is_room", "on_one_machine", "all", "two_on_each", "cpu"),
    *("more_ranks_than_gpus", "after_it"),
]
NUMBERS = "3 on node 0 (alpha), 1 on node 1 (beta)"
SKIPPED = {
    "auto": "has no backend nccl here; there are fake, gloo",
    "too_many": f"NCCL needs a GPU for each rank: 6 needed, {NUMBERS}",
    "too_many_on_one": "device='cuda' is a GPU for each rank: 4 needed on one machine (nodes=1), "
    f"{NUMBERS}; ranks_per_gpu=2 lets ranks share them",
}


@pytest.fixture(scope="module", params=["torchrun", "launcher"])
def session(
    cluster: Cluster,
    new_suite: Callable[[], Suite],
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Session:
    """A session on alpha and beta, in which beta's process sees one of its two GPUs."""
    suite = new_suite()
    suite.write("conftest.py", CONFTEST)
    suite.write("test_gpus.py", SOURCE)
    env = variables_for(tmp_path_factory.mktemp("gpus"), {"alpha": 3, "beta": 2})
    of = {1: {"CUDA_VISIBLE_DEVICES": "1"}}
    return cluster.run(suite, "-rs", env=env, of=of, torchrun=request.param == "torchrun")


@pytest.mark.parametrize("name", PASSED)
def test_ranks_are_where_they_should_be(session: Session, name: str) -> None:
    result = session.alpha[f"test_{name}"]
    assert result.verdict == "passed", result.text


@pytest.mark.parametrize("name", SKIPPED)
def test_what_cannot_be_had_is_a_skip_with_the_numbers(session: Session, name: str) -> None:
    result = session.alpha[f"test_{name}"]
    assert result.verdict == "skipped", result.text
    assert SKIPPED[name] in flat(result.text)


def test_failures_are_reported_as_without_gpus(session: Session) -> None:
    failed, died = session.alpha["test_fails"], session.alpha["test_dies"]
    assert (failed.verdict, died.verdict) == ("failed", "failed")
    assert "rank 1 of 3 failed in call: AssertionError: assert 1 != 1" in flat(failed.text)
    assert "ranks 0-1 on node 0 (alpha), rank 2 on node 1 (beta)." in flat(failed.text)
    assert "rank 3 exited with code 3" in flat(died.text)
    assert len(session.alpha.results) == len(PASSED) + len(SKIPPED) + 3


def test_a_rank_whose_gpu_a_test_has_broken_is_replaced(session: Session) -> None:
    assert session.alpha["test_breaks_it"].verdict == "failed"
    (warning,) = (shown for shown in session.alpha.warnings if "no longer works" in shown)
    assert "on rank 3; the rank is replaced" in warning


ON_BETA = """
    import os
    import socket

    import pytest
    import torch
    import torch.distributed as dist


    @pytest.mark.parametrize("number", range(2))
    @pytest.mark.ddp(world_size=2, device="cuda", backend="gloo", timeout=60)
    def test_two(ddp, number):
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == 2
        names = "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_WORLD_SIZE"
        place = [socket.gethostname(), str(ddp.device), *(os.environ[name] for name in names)]
        assert ddp.gather(place) == [
            ["beta", "cuda:0", "0", "2", "0", "1"], ["beta", "cuda:1", "1", "2", "0", "1"]
        ]


    @pytest.mark.ddp(world_size=2, nodes=2)
    def test_on_both(ddp):
        assert ddp.gather(socket.gethostname()) == ["alpha", "beta"]
        assert ddp.backend == "gloo"


    @pytest.mark.ddp(world_size=3, device="cuda", backend="gloo")
    def test_too_many(ddp): ...
"""


def test_a_node_0_without_gpus_leaves_them_to_others(
    cluster: Cluster, suite: Suite, tmp_path: Path
) -> None:
    """Node 0 has a GPU that its variable hides."""
    suite.write("conftest.py", CONFTEST)
    suite.write("test_gpus.py", ON_BETA)
    env = variables_for(tmp_path / "gpus", {"alpha": 1, "beta": 2})
    session = cluster.run(suite, "-rs", env=env, of={0: {"CUDA_VISIBLE_DEVICES": ""}})
    session.alpha.assert_outcomes(passed=3, skipped=1)
    assert (
        "3 needed, 0 on node 0 (alpha), 2 on node 1 (beta); ranks_per_gpu=2" in session.alpha.flat
    )
