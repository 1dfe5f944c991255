"""The ways in which a rank can fail, as lines of test code, and what the text must have for each.

For ``test_verdict_death.py``, in which every line is run on every rank position, in the body of a
test and where it applies in a fixture's setup and teardown; and for ``tests/chaos``, in which other
things happen at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass

DEFINITIONS = """
class Unpicklable(Exception):
    def __init__(self):
        super().__init__("holds a lock")
        self.lock = threading.Lock()


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("no text")


def descend(depth):
    return descend(depth + 1)


def answer(rank):
    return rank + 40
"""
"""What the lines call."""

PRELUDE = f'''
"""Written by an acceptance test."""
import ctypes
import os
import signal
import sys
import threading
from os import getpid

import pytest
import torch
import torch.distributed as dist

libc = ctypes.CDLL(None)

{DEFINITIONS}

def sum_of_ones():
    ones = torch.ones(1)
    dist.all_reduce(ones)
    return ones.item()
'''

AFTER = """

@pytest.mark.ddp(world_size=3)
def test_after_{name}(ddp):
    assert sum_of_ones() == 3
"""


@dataclass(frozen=True, slots=True)
class Death:
    """One way to fail."""

    name: str
    line: str
    """The culprit; ``ddp`` is at hand."""
    shown: str
    """What the failure text must contain; ``{answer}`` stands for 40 + rank."""
    in_fixtures: bool = True
    """Whether the death is also tried in the setup and the teardown of a fixture."""
    leaves_line: bool = True
    """False where nothing can be written any more."""


EXCEPTIONS = (
    Death("raises", 'raise ValueError("broken here")', "ValueError: broken here"),
    Death("assert", "assert answer(ddp.rank) == 99", "assert {answer} == 99"),
    Death("unpicklable", "raise Unpicklable", "Unpicklable: holds a lock", in_fixtures=False),
    Death("unprintable", "raise Unprintable", "Unprintable", in_fixtures=False),
    Death("recursion", "descend(0)", "RecursionError", in_fixtures=False),
    Death("pytest_fail", 'pytest.fail("on purpose")', "on purpose", in_fixtures=False),
)
"""What any test may raise."""
BASE_EXCEPTIONS = (
    Death("sys_exit0", "sys.exit(0)", "SystemExit: 0"),
    Death("sys_exit3", "sys.exit(3)", "SystemExit: 3", in_fixtures=False),
    Death("system_exit", 'raise SystemExit("leaving")', "SystemExit: leaving", in_fixtures=False),
    Death("keyboard_interrupt", "raise KeyboardInterrupt", "KeyboardInterrupt"),
    Death("sigint", "os.kill(getpid(), signal.SIGINT)", "KeyboardInterrupt", in_fixtures=False),
)
"""What ends a session in plain pytest, or the process."""
ENDS = (
    Death("sigsegv", "ctypes.string_at(0)", "SIGSEGV"),
    Death("sigabrt", "os.abort()", "SIGABRT"),
    Death("sigkill", "os.kill(getpid(), signal.SIGKILL)", "SIGKILL", leaves_line=False),
    Death("sigterm", "os.kill(getpid(), signal.SIGTERM)", "SIGTERM"),
    Death("exit0", "os._exit(0)", "exited with code 0"),
    Death("exit3", "os._exit(3)", "exited with code 3"),
    Death("libc_exit0", "libc.exit(0)", "exited with code 0"),
)
"""The process is gone at once."""
DEATHS = (*EXCEPTIONS, *BASE_EXCEPTIONS, *ENDS)

_BODY = """

@pytest.mark.ddp(world_size=3)
def test_{name}(ddp):
    if ddp.rank == {rank}:
        {line}  # {name}
"""

_SETUP = """

@pytest.fixture
def fix_{name}(ddp):
    if ddp.rank == {rank}:
        {line}  # {name}
    yield


@pytest.mark.ddp(world_size=3)
def test_{name}(fix_{name}):
    pass
"""

_TEARDOWN = """

@pytest.fixture
def fix_{name}(ddp):
    yield
    if ddp.rank == {rank}:
        {line}  # {name}


@pytest.mark.ddp(world_size=3)
def test_{name}(fix_{name}):
    pass
"""

_IN_COLLECTIVE = """

@pytest.mark.ddp(world_size=3, timeout={timeout})
def test_{name}(ddp):
    if ddp.rank == {rank}:
        {line}  # {name}
    sum_of_ones()  # blocked {name}
"""


def source(place: str, rank: int) -> str:
    """An inner test file: every death of this rank, each followed by a healthy test.

    Args:
        place: ``body``, ``setup``, ``teardown``, or ``collective`` for the body while
            the other ranks wait in an all_reduce.
        rank: the rank that fails.
    """
    template = {
        "body": _BODY,
        "setup": _SETUP,
        "teardown": _TEARDOWN,
        "collective": _IN_COLLECTIVE,
    }[place]
    blocks = [
        (template + AFTER).format(
            name=name_of(death, rank),
            rank=rank,
            line=death.line,
            timeout=60,
        )
        for death in deaths(place)
    ]
    return PRELUDE + "".join(blocks)


def deaths(place: str) -> tuple[Death, ...]:
    """The deaths that are tried at a place."""
    if place == "body":
        return DEATHS
    if place == "collective":
        return tuple(death for death in DEATHS if death.name in _BESIDE_BLOCKED_PEERS)
    return tuple(death for death in DEATHS if death.in_fixtures)


_BESIDE_BLOCKED_PEERS = ("raises", "sigsegv", "sigkill", "exit0", "keyboard_interrupt")


def name_of(death: Death, rank: int) -> str:
    """The inner test's name without ``test_``."""
    return f"{death.name}_{rank}"


def line_of(text: str, comment: str) -> int:
    """Number of the line that ends in this comment, counted from 1."""
    lines = text.splitlines()
    return next(n for n, line in enumerate(lines, 1) if line.endswith(f"  # {comment}"))
