"""Each kind of verdict once: a failing test must fail, and for the right reason."""

import os
import signal
import threading

import pytest
import torch
import torch.distributed as dist

pytestmark = pytest.mark.ddp

EXPECTED = {
    "test_passes": ("passed", ""),
    "test_fails_on_one": ("failed", "only here"),
    "test_fails_on_all": ("failed", "everywhere"),
    "test_skips": ("skipped", "nothing to see"),
    "test_skips_on_one": ("failed", "disagree"),
    "test_is_expected_to_fail": ("xfailed", "assert False"),
    "test_passes_unexpectedly": ("failed", "[XPASS(strict)]"),
    "test_has_a_broken_fixture": ("error", "no fixture"),
    "test_has_a_broken_end": ("passed+error", "no end"),
    "test_dies_of_a_signal": ("failed", "SIGSEGV"),
    "test_is_killed": ("failed", "SIGKILL"),
    "test_leaves_with_code_0": ("failed", "exited with code 0"),
    "test_waits_for_nobody": ("failed", "barrier"),
    "test_calls_another_collective": ("failed", "all_gather"),
    "test_reduces_otherwise": ("failed", "all_reduce"),
    "test_has_one_collective_more": ("failed", "barrier"),
    "test_trains_on_other_data": ("failed", "unlike rank 0"),
    "test_takes_too_long": ("failed", "timed out after 1 s"),
    "test_passes_after_all_that": ("passed", ""),
}


@pytest.fixture
def breaks():
    raise OSError("no fixture")


@pytest.fixture
def breaks_after():
    yield
    raise OSError("no end")


def add_up(ddp):
    total = torch.tensor(float(ddp.rank + 1), device=ddp.device)
    dist.all_reduce(total)
    assert total.item() == ddp.world_size * (ddp.world_size + 1) / 2


def test_passes(ddp):
    add_up(ddp)


def test_fails_on_one(ddp):
    assert ddp.rank == 0, "only here"


def test_fails_on_all():
    raise AssertionError("everywhere")


def test_skips():
    pytest.skip("nothing to see")


def test_skips_on_one(ddp):
    if ddp.rank:
        pytest.skip("alone")


@pytest.mark.xfail(reason="known")
def test_is_expected_to_fail():
    assert False  # noqa: B011, PT015


@pytest.mark.xfail(strict=True, reason="no more")
def test_passes_unexpectedly():
    pass


def test_has_a_broken_fixture(breaks):
    pass


def test_has_a_broken_end(breaks_after):
    pass


def test_dies_of_a_signal(ddp):
    if ddp.rank:
        os.kill(os.getpid(), signal.SIGSEGV)
    dist.barrier()


def test_is_killed(ddp):
    if ddp.rank:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def test_leaves_with_code_0(ddp):
    if ddp.rank:
        os._exit(0)


def test_waits_for_nobody(ddp):
    if ddp.rank:
        dist.barrier()


def test_calls_another_collective(ddp):
    ones = torch.ones(2, device=ddp.device)
    if ddp.rank:
        dist.all_gather([torch.ones_like(ones) for _ in range(ddp.world_size)], ones)
    else:
        dist.barrier()


def test_reduces_otherwise(ddp):
    largest = ddp.rank == 1
    ones = torch.ones(2, device=ddp.device)
    dist.all_reduce(ones, dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM)


def test_has_one_collective_more(ddp):
    add_up(ddp)
    if ddp.rank == 0:
        dist.barrier(async_op=True)


def test_trains_on_other_data(ddp):
    layer = torch.nn.Linear(2, 1).to(ddp.device)
    with torch.no_grad():
        layer.weight.fill_(1.0 + ddp.rank)
    weight = layer.weight.detach().clone()
    dist.broadcast(weight, 0)
    assert torch.equal(weight, layer.weight), "unlike rank 0"


@pytest.mark.ddp(timeout=1)
def test_takes_too_long():
    threading.Event().wait(600)


def test_passes_after_all_that(ddp):
    add_up(ddp)
