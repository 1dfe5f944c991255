"""Ranks that die, fail or abort while others wait for them, and a good test after each."""

import os
import signal

import pytest
import torch
import torch.distributed as dist

pytestmark = pytest.mark.ddp

EXPECTED = {
    "test_before": ("passed", ""),
    "test_killed_while_the_other_waits": ("failed", "SIGKILL"),
    "test_after_a_kill": ("passed", ""),
    "test_aborts_its_communicator": ("failed", "aborted here"),
    "test_after_an_abort": ("passed", ""),
    "test_fails_while_the_other_waits": ("failed", "only rank 1"),
    "test_after_a_failure": ("passed", ""),
    "test_point_to_point": ("passed", ""),
    "test_receives_from_nobody": ("failed", "recv"),
    "test_at_the_end": ("passed", ""),
}


def settle(ddp):
    """Wait for the GPU, which a collective of NCCL does not."""
    if ddp.device.type == "cuda":
        torch.cuda.synchronize()


def works(ddp):
    total = torch.ones(1 << 10, device=ddp.device)
    dist.all_reduce(total)
    settle(ddp)
    assert total.sum().item() == ddp.world_size << 10


def waits(ddp):
    dist.all_reduce(torch.ones(1, device=ddp.device))
    settle(ddp)


def test_before(ddp):
    works(ddp)


def test_killed_while_the_other_waits(ddp):
    if ddp.rank:
        os.kill(os.getpid(), signal.SIGKILL)
    waits(ddp)


def test_after_a_kill(ddp):
    works(ddp)


def test_aborts_its_communicator(ddp):
    works(ddp)
    if ddp.rank:
        dist.distributed_c10d._abort_process_group()
        raise RuntimeError("aborted here")
    waits(ddp)


def test_after_an_abort(ddp):
    works(ddp)


def test_fails_while_the_other_waits(ddp):
    assert ddp.rank == 0, "only rank 1"
    waits(ddp)


def test_after_a_failure(ddp):
    works(ddp)


def test_point_to_point(ddp):
    number = torch.full((4,), float(ddp.rank), device=ddp.device)
    if ddp.rank:
        dist.send(number, 0)
    else:
        dist.recv(number, 1)
        assert number.tolist() == [1.0] * 4


def test_receives_from_nobody(ddp):
    if ddp.rank == 0:
        dist.recv(torch.ones(4, device=ddp.device), 1)
        settle(ddp)


def test_at_the_end(ddp):
    works(ddp)
