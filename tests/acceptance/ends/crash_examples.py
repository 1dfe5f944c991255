"""Inner tests in which rank 1 of 2 dies, each in its own way or in its own phase.

Data for ``test_crash_locator.py``. The line that ends in ``# here NAME`` is the one that the
failure text of ``test_NAME`` must name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

PRELUDE = '''
"""Written by an acceptance test."""
import atexit
import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import time

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

ddp2 = pytest.mark.ddp(world_size=2)
libc = ctypes.CDLL(None)
CPU = torch.device("cpu")


def kill():
    os.kill(os.getpid(), signal.SIGKILL)
'''

WAYS = '''

@ddp2
def test_python_code(ddp):
    if ddp.rank == 1:
        ctypes.string_at(0)  # here python_code


def unreadable_tensor():
    """Four floats on a page that may not be read."""
    libc.mmap.restype = ctypes.c_void_p
    page = libc.mmap(None, ctypes.c_size_t(4096), 0, 0x22, -1, 0)
    return torch.frombuffer((ctypes.c_char * 16).from_address(page), dtype=torch.float32)


@ddp2
def test_operator(ddp):
    if ddp.rank == 1:
        unreadable_tensor() + 1  # here operator


@ddp2
def test_second_thread(ddp):
    def crash():
        ctypes.string_at(0)  # here second_thread

    if ddp.rank == 1:
        thread = threading.Thread(target=crash)
        thread.start()
        thread.join()


@ddp2
def test_second_thread_without_own_code(ddp):
    if ddp.rank == 1:
        thread = threading.Thread(target=ctypes.string_at, args=(0,))
        thread.start(), thread.join()  # here second_thread_without_own_code


class CrashesWhenWrapped(torch.nn.Linear):
    def named_parameters(self, *args, **kwargs):
        if dist.get_rank() == 1:
            ctypes.string_at(0)  # here ddp_construction
        return super().named_parameters(*args, **kwargs)


@ddp2
def test_ddp_construction(ddp):
    DistributedDataParallel(CrashesWhenWrapped(2, 2))


@ddp2
def test_compile(ddp):
    def backend(graph, inputs):
        if ddp.rank == 1:
            ctypes.string_at(0)  # here compile
        return graph.forward

    torch.compile(torch.nn.Linear(2, 2), backend=backend)(torch.ones(2))


class CrashesInItsText(Exception):
    texts = 0

    def __str__(self):
        CrashesInItsText.texts += 1
        if CrashesInItsText.texts > 1:
            ctypes.string_at(0)  # here report_of_an_exception
        return "the cause"


@ddp2
def test_report_of_an_exception(ddp):
    if ddp.rank == 1:
        raise CrashesInItsText


class CrashesInWorker(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        if index == 2:
            ctypes.string_at(0)  # here worker
        return index


@ddp2
def test_worker(ddp):
    if ddp.rank == 1:
        list(torch.utils.data.DataLoader(CrashesInWorker(), num_workers=1))


@ddp2
def test_pipe(ddp):
    if ddp.rank == 1:
        ours, theirs = multiprocessing.Pipe()
        child = multiprocessing.get_context("fork").Process(
            target=lambda: ctypes.string_at(0)  # here pipe
        )
        child.start()
        theirs.close()
        ours.recv()


@ddp2
def test_c_stack_overflow(ddp):
    if ddp.rank == 1:
        sys.setrecursionlimit(10**8)
        descend = ctypes.CFUNCTYPE(None)(lambda: descend())  # here c_stack_overflow
        descend()


@ddp2
def test_gloo_abort(ddp):
    dist.all_reduce(torch.ones(4 + ddp.rank))  # here gloo_abort


@ddp2
def test_sigkill(ddp):  # next sigkill
    if ddp.rank == 1:
        kill()
    dist.barrier()


@ddp2
def test_sigkill_after_a_while(ddp):
    if ddp.rank == 1:
        killer = threading.Timer(2.0, kill)
        killer.start()
        time.sleep(60)  # here sigkill_after_a_while
    dist.barrier()


@ddp2
def test_exit_in_exit_handler(ddp):
    if ddp.rank == 1:
        atexit.register(os._exit, 0)
        sys.exitfunc = atexit._run_exitfuncs
        sys.exitfunc()  # here exit_in_exit_handler
    dist.barrier()


@ddp2
def test_exit_in_libc_exit_handler(ddp):
    if ddp.rank == 1:
        libc.exit(0)  # here exit_in_libc_exit_handler
    dist.barrier()


@ddp2
def test_address_space_is_used_up(ddp):
    import resource

    if ddp.rank == 1:
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
        # Not bytearray, which writes zeros: the machine may have less memory than that.
        hoard = [bytes(1 << 28) for _ in range(64)]  # here address_space_is_used_up
    dist.barrier()


@ddp2
def test_next_one_passes(ddp):
    ones = torch.ones(1)
    dist.all_reduce(ones)
    assert ones.item() == 2
'''


@dataclass(frozen=True, slots=True)
class Way:
    """What the text must have for one way to die."""

    verdict: str
    """Beginning of the one-line message; a regular expression, since a gloo abort may hit
    either rank first."""
    words: tuple[str, ...] = ()
    """What the text must contain, on one line or wrapped."""
    named_by: str = "here"
    """Comment on the line that must be named."""


WAYS_SAID = {
    "python_code": Way("rank 1 died of SIGSEGV in call"),
    "operator": Way("rank 1 died of SIGSEGV in call", ("at::_ops::add_Tensor::call",)),
    "second_thread": Way(
        "rank 1 died of SIGSEGV in call", ("in a thread beside the test", "the test itself")
    ),
    "second_thread_without_own_code": Way(
        "rank 1 died of SIGSEGV in call", ("in a thread beside the test", "the test itself")
    ),
    "ddp_construction": Way("rank 1 died of SIGSEGV in call: DDP construction"),
    "compile": Way("rank 1 died of SIGSEGV in call: compilation"),
    "report_of_an_exception": Way(
        "rank 1 died of SIGSEGV in call",
        ("its call had raised test_ways.CrashesInItsText: the cause",),
    ),
    "worker": Way("rank 1", ("a process that rank 1 forked died of SIGSEGV",)),
    "pipe": Way("rank 1", ("a process that rank 1 forked died of SIGSEGV", "EOFError")),
    "c_stack_overflow": Way(
        "rank 1 died of SIGSEGV in call", ("a recursion may have used up the C stack",)
    ),
    "gloo_abort": Way(
        "rank [01] died of SIGABRT in call",
        ("gloo aborted it (EnforceNotMet", "tensors of different shape or dtype", "8 vs 4"),
    ),
    "sigkill": Way("rank 1 died of SIGKILL in call", ("begun at",), named_by="next"),
    "sigkill_after_a_while": Way("rank 1 died of SIGKILL in call", ("last seen at",)),
    "exit_in_exit_handler": Way(
        "rank 1 exited with code 0 before reporting call", ("exit code 0 is no verdict",)
    ),
    "exit_in_libc_exit_handler": Way(
        "rank 1 exited with code 0 before reporting call", ("exit code 0 is no verdict",)
    ),
    "address_space_is_used_up": Way("rank 1: MemoryError"),
}


def line_of(source: str, name: str) -> int:
    """Number of the line that must be named: marked ``here``, or below a decorator ``next``."""
    lines = source.splitlines()
    for number, line in enumerate(lines, 1):
        if re.search(rf"  # here {name}$", line):
            return number
        if re.search(rf"  # next {name}$", line):
            # A function begins where its decorators do.
            return number - 1
    raise AssertionError(f"no line is marked for {name}")
