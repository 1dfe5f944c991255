"""A pytest plugin: runs each test many times, as pytest-repeat does with ``--count``.

With ``RACES_SLEEPS=random`` a run sleeps at some of its points, by chance; with ``each`` run *n*
sleeps at point *n* alone. A point is an operation on a file or folder below ``tmp_path``, a call of
torch.distributed, or the begin of a thread: a crude recorder, which knows nothing of what points
mean.
"""

from __future__ import annotations

import functools
import os
import random
import sys
import threading
import time

import pytest
import torch
import torch.distributed as dist

from pytest_ddp.extending import on_rank

COUNT = 300
"""The number of runs; the time that a session is given ends them long before."""
EVENTS = {
    "open",
    "os.listdir",
    "os.scandir",
    "os.mkdir",
    "os.rmdir",
    "os.remove",
    "os.rename",
    "os.link",
    "os.symlink",
    "os.truncate",
    "fcntl.flock",
    "fcntl.lockf",
}
CALLS = [
    "barrier",
    "monitored_barrier",
    "broadcast",
    "broadcast_object_list",
    "all_reduce",
    "reduce",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "gather",
    "gather_object",
    "scatter",
    "scatter_object_list",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "all_to_all",
    "all_to_all_single",
    "send",
    "recv",
    "isend",
    "irecv",
]
_SHARE, _LONGEST = 0.2, 0.15
"""The share of points that sleep in a run by chance, and for how many seconds at most."""
_LATE = 0.4
"""Seconds of the sleep at one point alone."""

_sleeps = os.environ.get("RACES_SLEEPS", "")
_count_at = os.environ.get("RACES_POINTS", "")
_lock = threading.Lock()


class _Run:
    """What this process knows of the run in progress."""

    number = -1
    folder = ""
    reached = 0
    chance = random.Random()
    inside = threading.local()


def pytest_generate_tests(metafunc):
    metafunc.parametrize("_run_number", range(1 if _count_at else COUNT), indirect=True)


@pytest.fixture(autouse=True)
def _run_number(request, tmp_path):
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    _Run.reached = 0
    _Run.folder = str(tmp_path)
    _Run.chance = random.Random(f"{request.node.nodeid} {rank}")
    _Run.number = request.param
    yield
    _Run.number = -1
    if _count_at:
        with open(_count_at, "a") as file:
            file.write(f"{request.node.module.__name__} {rank} {world_size} {_Run.reached}\n")


def _point():
    if _Run.number < 0 or getattr(_Run.inside, "point", False):
        return
    with _lock:
        number = _Run.reached
        _Run.reached += 1
        chance, length = _Run.chance.random(), _Run.chance.random()
    seconds = 0.0
    if _sleeps == "random" and chance < _SHARE:
        seconds = length * _LONGEST
    # Ranks take turns: run 0 is late at point 0 of rank 0, run 1 at point 0 of rank 1.
    elif _sleeps == "each":
        rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        seconds = _LATE * (_Run.number == number * world_size + rank)
    if seconds:
        time.sleep(seconds)


def _heard(event, arguments):
    if _Run.number < 0 or event not in EVENTS:
        return
    path = arguments[0] if arguments else ""
    if event.startswith("fcntl") or _is_below(path, _Run.folder):
        _point()


def _is_below(path, folder):
    if isinstance(path, int) or path is None:
        return True
    return os.fsdecode(os.path.abspath(path)).startswith(folder)


def _counted(function):
    @functools.wraps(function)
    def call(*arguments, **named):
        _point()
        outer = getattr(_Run.inside, "point", False)
        _Run.inside.point = True
        try:
            return function(*arguments, **named)
        finally:
            _Run.inside.point = outer

    return call


def _counted_below(function):
    @functools.wraps(function)
    def call(path, *arguments, **named):
        if _Run.number >= 0 and _is_below(path, _Run.folder):
            _point()
        return function(path, *arguments, **named)

    return call


def _counted_from_begin(function):
    @functools.wraps(function)
    def run(thread):
        _point()
        function(thread)

    return run


def pytest_configure(config):
    if on_rank(config) and (_sleeps or _count_at):
        sys.addaudithook(_heard)
        for name in CALLS:
            setattr(dist, name, _counted(getattr(dist, name)))
        # C++ opens what is saved, and the interpreter does not tell of stat.
        torch.save = _counted(torch.save)
        os.stat = _counted_below(os.stat)
        threading.Thread.run = _counted_from_begin(threading.Thread.run)
