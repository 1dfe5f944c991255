"""The part of each test that runs on ranks, where it needs no fixture of pytest's."""

import os
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import work

MARKS = Path(os.environ.get("HABITS_MARKS", "."))
SEEN = []
LIMIT = 60
"""Seconds of process groups, in which processes import torch on a busy machine."""


def leave_mark(name, rank):
    (MARKS / f"{name}-{rank}").touch()


def reduce(rank):
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == 2


def covers(rank):
    assert work.covered() == 1


def warns(rank):
    work.warn()


def skips(rank):
    pytest.skip("not here")


def first(rank):
    leave_mark("first", rank)
    dist.barrier()
    assert rank == 0


def second(rank):
    leave_mark("second", rank)


def flaky(rank):
    mark = MARKS / f"flaky-{rank}"
    begun = mark.exists()
    mark.touch()
    if rank == 1 and not begun:
        raise AssertionError("once")
    reduce(rank)


def hangs(rank):
    if rank == 1:
        time.sleep(3600)
    dist.barrier()
