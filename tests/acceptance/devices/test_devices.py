"""What ranks work on, on a machine whose tools list two GPUs.

The GPUs are listed and never touched: what a rank asks of CUDA is written down instead. So whole
sessions show leases, the layout of ranks and ``ddp.device``, and nothing of CUDA itself.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.acceptance.suite import Finished, Suite

CONFTEST = """
    import torch

    from pytest_ddp.launch import gpus

    gpus.torch_build = lambda: gpus.Build.CUDA
    gpus.physical_gpus = lambda: (gpus.Gpu("GPU-one"), gpus.Gpu("GPU-two"))
    torch.cuda.set_device = lambda index: setattr(torch, "set_to", index)
"""

SOURCE = """
    import os

    import pytest
    import torch
    import torch.distributed as dist

    PIDS = []


    def places(ddp):
        dist.barrier()
        assert torch.set_to == ddp.device.index
        assert dist.get_backend() == ddp.backend == "gloo"
        return ddp.gather(str(ddp.device))


    @pytest.mark.ddp(world_size=2, device="cuda", backend="gloo")
    def test_each_its_own(ddp):
        assert places(ddp) == ["cuda:0", "cuda:1"]


    @pytest.mark.ddp(world_size=4, ranks_per_gpu=2)
    def test_two_share(ddp):
        assert places(ddp) == ["cuda:0", "cuda:0", "cuda:1", "cuda:1"]


    @pytest.mark.ddp(world_size=4, ranks_per_gpu=2)
    def test_each_is_a_host_to_nccl(ddp):
        hosts = ddp.gather(os.environ.get("NCCL_HOSTID"))
        assert None not in hosts
        assert len(set(hosts)) == 4
        assert (os.environ["NCCL_NET"], os.environ["NCCL_SOCKET_IFNAME"]) == ("Socket", "lo")


    @pytest.mark.ddp(world_size=2, device="cuda", backend="gloo")
    def test_one_host_to_nccl(ddp):
        assert ddp.gather(os.environ.get("NCCL_HOSTID")) == [None, None]


    @pytest.mark.ddp(world_size=2, device="cuda", backend="gloo")
    def test_torch_refuses_a_message(ddp):
        with pytest.raises(RuntimeError, match="contiguous"):
            dist.send(torch.ones(2, 3).t(), 1 - ddp.rank)
        PIDS.append(os.getpid())


    @pytest.mark.ddp(world_size=2, device="cuda", backend="gloo")
    def test_ranks_are_fresh_after_a_refused_message(ddp):
        assert os.getpid() not in PIDS
        PIDS.append(os.getpid())


    @pytest.mark.ddp(world_size=2, device="cuda", backend="gloo")
    def test_ranks_are_kept_otherwise(ddp):
        assert PIDS[-1] == os.getpid()


    @pytest.mark.ddp(world_size=2, ranks_per_gpu=2)
    def test_one_is_enough(ddp):
        assert places(ddp) == ["cuda:0", "cuda:0"]


    @pytest.mark.ddp(world_size="gpus", ranks_per_gpu=3)
    def test_three_on_each(ddp):
        assert places(ddp) == ["cuda:0"] * 3 + ["cuda:1"] * 3


    @pytest.mark.ddp(world_size=2, device="cpu")
    def test_cpu(ddp):
        assert ddp.gather(str(ddp.device)) == ["cpu", "cpu"]
        assert not hasattr(torch, "set_to")


    @pytest.mark.ddp(world_size=2, device="meta")
    def test_meta(ddp):
        assert torch.ones(3, device=ddp.device).is_meta


    @pytest.mark.ddp(world_size=3, device="cuda", backend="gloo")
    def test_too_many(ddp):
        pass


    @pytest.mark.ddp(world_size=2)
    def test_auto(ddp):
        pass
"""

CONTRADICTIONS = """
    import pytest


    @pytest.mark.ddp(world_size=4, backend="xccl", ranks_per_gpu=2)
    def test_xccl_on_shared_gpus(ddp):
        pass


    @pytest.mark.ddp(device="cpu", backend="nccl")
    def test_nccl_without_gpus(ddp):
        pass


    @pytest.mark.ddp(device="cuda:1")
    def test_this_gpu(ddp):
        pass
"""

OPTIONS = """
    import pytest
    import torch.distributed as dist


    @pytest.mark.ddp(world_size=4)
    def test_as_the_options_say(ddp):
        dist.barrier()
        assert ddp.gather(str(ddp.device)) == ["cuda:0", "cuda:0", "cuda:1", "cuda:1"]


    @pytest.mark.ddp(world_size=2, device="cpu")
    def test_as_the_mark_says(ddp):
        assert ddp.device.type == "cpu"
"""


@pytest.fixture(scope="module")
def two_gpus(new_suite: Callable[[], Suite]) -> Callable[..., Finished]:
    """Runs files on a machine with two GPUs, and leases of its own."""

    def run(name: str, source: str, *args: str) -> Finished:
        suite = new_suite()
        suite.write("conftest.py", CONFTEST)
        suite.write(name, source)
        folder = suite.directory / "tmp"
        folder.mkdir()
        return suite.run("-rs", *args, env={"TMPDIR": str(folder)}, timeout=60)

    return run


@pytest.fixture(scope="module")
def finished(two_gpus: Callable[..., Finished]) -> Finished:
    return two_gpus("test_devices.py", SOURCE)


@pytest.mark.parametrize(
    "name",
    [
        *("each_its_own", "two_share", "one_is_enough", "three_on_each", "cpu", "meta"),
        *("each_is_a_host_to_nccl", "one_host_to_nccl", "torch_refuses_a_message"),
        *("ranks_are_fresh_after_a_refused_message", "ranks_are_kept_otherwise"),
    ],
)
def test_ranks_are_where_they_should_be(finished: Finished, name: str) -> None:
    assert finished[f"test_{name}"].verdict == "passed", finished[f"test_{name}"].text


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (
            "too_many",
            "device='cuda' is a GPU for each rank: 3 needed, 2 found usable by torch; "
            "ranks_per_gpu=3 lets ranks share one",
        ),
        ("auto", "has no backend nccl here; there are fake, gloo"),
    ],
)
def test_what_cannot_be_had_is_a_skip(finished: Finished, name: str, reason: str) -> None:
    assert finished[f"test_{name}"].verdict == "skipped"
    assert reason in finished[f"test_{name}"].text


def test_contradictions_are_reported_at_collection(two_gpus: Callable[..., Finished]) -> None:
    finished = two_gpus("test_wrong.py", CONTRADICTIONS)
    assert finished.returncode == pytest.ExitCode.INTERRUPTED
    for text in (
        "test_xccl_on_shared_gpus: @pytest.mark.ddp: ranks_per_gpu=2 with backend='xccl': xccl "
        "refuses two ranks on one GPU. Write backend='gloo', with which they can share it.",
        "test_nccl_without_gpus: @pytest.mark.ddp: device='cpu' with backend='nccl': nccl needs "
        "cuda devices. Write backend='gloo', or device='cuda'.",
        "test_this_gpu: @pytest.mark.ddp(device='cuda:1'): the device is one of cpu, cuda, xpu "
        "and meta; the plugin decides which GPU a rank gets.",
    ):
        assert text in finished.flat


def test_options_for_a_whole_suite(two_gpus: Callable[..., Finished]) -> None:
    options = ("--ddp-device=cuda", "--ddp-backend=gloo", "--ddp-ranks-per-gpu=2")
    finished = two_gpus("test_options.py", OPTIONS, *options)
    finished.assert_outcomes(passed=2)


def test_workers_share_what_shares_leave_free(two_gpus: Callable[..., Finished]) -> None:
    source = """
        import time

        import pytest


        @pytest.mark.parametrize("number", range(4))
        @pytest.mark.ddp(world_size=2, ranks_per_gpu=4)
        def test_half_a_gpu(ddp, number):
            time.sleep(0.2)
            assert set(ddp.gather(ddp.device.index)) <= {0, 1}
    """
    finished = two_gpus("test_shares.py", source, "-n", "2")
    finished.assert_outcomes(passed=4)
