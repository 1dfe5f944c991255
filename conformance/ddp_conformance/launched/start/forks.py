"""Child processes of a rank: forks of it, and processes that have never been one."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

import torch.distributed as dist
from torch.distributed import distributed_c10d

from ddp_conformance.launched.start.launch import SERVER
from ddp_conformance.stage.machines import forget_launcher

T = TypeVar("T")

SECONDS = 60.0
"""After which a child is taken to hang."""


def in_child(function: Callable[[], T]) -> T:
    """What ``function`` returns in a forked child.

    Raises ``RuntimeError`` for a child that raised, died, or did not end within
    :data:`SECONDS`.
    """
    context = multiprocessing.get_context("fork")
    answer: T = _answer_of(lambda sender: context.Process(target=_report, args=(function, sender)))
    return answer


def in_fresh_process(function: Callable[[], T]) -> T:
    """What ``function`` returns in a process that has imported nothing of the user's.

    Born as a launched rank is, before its place is known. The function is pickled; raises as
    :func:`in_child` does.
    """
    answer: T = _answer_of(lambda sender: SERVER.process(_report, (function, sender)))
    return answer


def _answer_of(make: Callable[[Connection], BaseProcess]) -> Any:
    receiver, sender = multiprocessing.Pipe(duplex=False)
    child = make(sender)  # no daemon, which could have no children of its own
    child.start()
    sender.close()
    try:
        answer: tuple[str, Any] = receiver.recv() if receiver.poll(SECONDS) else ("hung", None)
    except EOFError:
        answer = ("died", None)
    if answer[0] != "hung":
        child.join(SECONDS)
    if child.exitcode is None:
        child.kill()
        child.join()
    kind, value = answer
    if kind != "returned":
        raise RuntimeError(f"a forked child of the rank {kind}: {value or child.exitcode}")
    return value


def _report(function: Callable[[], Any], sender: Connection) -> None:
    try:
        sender.send(("returned", function()))
    except Exception as error:
        sender.send(("raised", f"{type(error).__name__}: {error}"))


_forgotten: list[Any] = []


def forget_rank() -> None:
    """Be a process that no launcher has started, without a process group. Only in a child."""
    forget_launcher()
    if dist.is_initialized():
        # Kept: its destructor would wait for threads that did not come through the fork.
        _forgotten.append(dist.group.WORLD)
        distributed_c10d._update_default_pg(None)


def become_rank(environment: Mapping[str, str]) -> None:
    """Be a process that a launcher has started."""
    os.environ.update(environment)
