"""The module ``helpers`` of every inner suite, as text: what inner tests and fixtures call."""

from __future__ import annotations

import textwrap

HELPERS = '''
import asyncio, atexit, ctypes, faulthandler, gc, json, logging, os, random, signal
import subprocess, sys, tempfile, threading, time, warnings
from multiprocessing import get_context, shared_memory
from os import getpid, write  # by these names: tests may leave others in their modules
from pathlib import Path
from time import monotonic

import pytest
import torch
import torch.distributed as dist

HOME = os.getcwd()
KEPT = []
libc = ctypes.CDLL(None)
holding_the_gil = ctypes.PyDLL(None)


class Odd(BaseException):
    pass


def rank():
    return int(os.environ["RANK"])


def total():
    """The world size, as far as the default group knows."""
    ones = torch.ones(3)
    dist.all_reduce(ones)
    return ones.mean().item()


def pids():
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, getpid())
    return found


def note(*words):
    """One line for the outer process, written whole."""
    line = " ".join(map(str, (*words, getpid()))) + "\\n"
    descriptor = os.open(os.environ["CHAOS_NOTES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    write(descriptor, line.encode())
    os.close(descriptor)


def sound(ddp):
    """Nothing that is promised to be restored is left of the tests before."""
    assert total() == ddp.world_size == dist.get_world_size()
    assert dist.get_rank() == ddp.rank == rank()
    assert ddp.gather(ddp.rank) == list(range(ddp.world_size))
    assert os.getcwd() == HOME
    assert "CHAOS_LEFT" not in os.environ
    assert torch.get_default_dtype() is torch.float32
    assert torch.is_grad_enabled()
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert len(set(ddp.gather(torch.initial_seed()))) == ddp.world_size

'''

WIDE = {
    "sums": """
        assert total() == dist.get_world_size()
        yield lambda: None
        assert total() == dist.get_world_size()
    """,
    "objects": """
        everybody = [None] * dist.get_world_size()
        dist.all_gather_object(everybody, rank())
        assert everybody == list(range(dist.get_world_size()))
        yield lambda: total()
        dist.barrier()
    """,
    "group": """
        group = dist.new_group()
        def use():
            dist.barrier(group=group)
        yield use
        dist.barrier(group=group)
        dist.destroy_process_group(group)
    """,
    "model": """
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
        def use():
            model.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
        yield use
        del model
    """,
    "thread": """
        ends = threading.Event()
        thread = threading.Thread(target=ends.wait)
        thread.start()
        def use():
            assert thread.is_alive()
        yield use
        ends.set()
        thread.join()
    """,
    "folder": """
        with tempfile.TemporaryDirectory(dir=HOME) as folder:
            def use():
                assert os.path.isdir(folder)
            yield use
    """,
}
"""What fixtures wider than a test do; each yields a function that a test calls to use it."""


def wide_fixture(name: str, scope: str, use: str) -> str:
    """The source of a fixture that notes its beginning and its end."""
    source = f"@pytest.fixture(scope={scope!r})\ndef {name}():\n    note('begins', {name!r})\n"
    source += textwrap.indent(textwrap.dedent(WIDE[use]).strip(), "    ")
    return f"{source}\n    note('ends', {name!r})\n"
