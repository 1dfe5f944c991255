"""What a run has left in its rank, and what only takes a moment to end."""

from __future__ import annotations

import multiprocessing
import time
from multiprocessing.process import BaseProcess

import pytest
from ddp_conformance.launched.process import leftovers
from ddp_conformance.launched.process.leftovers import Surroundings
from ddp_conformance.launched.start.kept_servers import in_process_of


def sleeping_fork() -> BaseProcess:
    context = multiprocessing.get_context("fork")
    fork = context.Process(target=time.sleep, args=(60,), daemon=True)
    fork.start()
    return fork


def left_of_forks() -> tuple[list[str], list[str]]:
    """What is left with a fork that was asked to end, and with one that was not."""
    leftovers.SETTLE = 30.0  # the end comes in a moment, which is long on a busy machine
    before = Surroundings.now()
    sleeping_fork().terminate()
    ended = [left.what for left in before.left(0)]
    leftovers.SETTLE = 0.1
    sleeping_fork()
    return ended, [left.what for left in before.left(0)]


@pytest.mark.ddp(world_size=1)
def test_a_fork_that_was_not_asked_to_end_is_left() -> None:
    ended, left = in_process_of(0, left_of_forks)
    assert ended == []
    assert left == ["a forked child process"]
