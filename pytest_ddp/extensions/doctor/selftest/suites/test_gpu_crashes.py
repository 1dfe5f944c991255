"""GPU crashes on one rank: each verdict names the cause, and the next test is not harmed."""

import os
import signal

import pytest
import torch
import torch.distributed as dist

pytestmark = pytest.mark.ddp

EXPECTED = {
    "test_before": ("passed", ""),
    "test_out_of_memory": ("failed", "out of memory"),
    "test_after_out_of_memory": ("passed", ""),
    "test_device_assert": ("failed", "device-side assert"),
    "test_after_device_assert": ("passed", ""),
    "test_illegal_memory_access": ("failed", "illegal memory access"),
    "test_after_illegal_memory_access": ("passed", ""),
    "test_killed_in_a_kernel": ("failed", "SIGKILL"),
    "test_after_a_kill": ("passed", ""),
    "test_segfault_with_a_kernel_under_way": ("failed", "SIGSEGV"),
    "test_after_a_segfault": ("passed", ""),
    "test_asserts_on_results": ("failed", "not enough"),
    "test_at_the_end": ("passed", ""),
}

LONG = 1 << 36
"""Cycles of a kernel: half a minute at 2 GHz; no test waits for it."""

BAD_ADDRESS = "template <typename T> T reads_nowhere(T x) { return x + *reinterpret_cast<T*>(64); }"


def works(ddp):
    total = torch.ones(1 << 10, device=ddp.device)
    dist.all_reduce(total)
    torch.cuda.synchronize()
    assert total.sum().item() == ddp.world_size << 10


def test_before(ddp):
    assert ddp.backend == "nccl"
    works(ddp)


def test_out_of_memory(ddp):
    torch.empty(1 << 50, dtype=torch.uint8, device=ddp.device)


def test_after_out_of_memory(ddp):
    works(ddp)


def test_device_assert(ddp):
    torch.zeros(4, device=ddp.device)[torch.tensor([9], device=ddp.device)]
    torch.cuda.synchronize()


def test_after_device_assert(ddp):
    works(ddp)


def test_illegal_memory_access(ddp):
    reads_nowhere = torch.cuda.jiterator._create_jit_fn(BAD_ADDRESS)
    reads_nowhere(torch.ones(4, device=ddp.device))
    torch.cuda.synchronize()


def test_after_illegal_memory_access(ddp):
    works(ddp)


def test_killed_in_a_kernel(ddp):
    torch.cuda._sleep(LONG)
    os.kill(os.getpid(), signal.SIGKILL)


def test_after_a_kill(ddp):
    works(ddp)


def test_segfault_with_a_kernel_under_way(ddp):
    torch.cuda._sleep(LONG)
    os.kill(os.getpid(), signal.SIGSEGV)


def test_after_a_segfault(ddp):
    works(ddp)


def test_asserts_on_results(ddp):
    assert torch.ones(2, device=ddp.device).sum().item() > 2, "not enough"


def test_at_the_end(ddp):
    works(ddp)
