"""Child processes of a rank: forks of it, and processes that have never been one."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection
from typing import Any, TypeVar

import torch.distributed as dist
from torch.distributed import distributed_c10d

from ddp_conformance.launched.start.kept_servers import Server
from ddp_conformance.lockstep.machines import forget_launcher

T = TypeVar("T")

SECONDS = 60
"""Seconds after which a child is taken to hang."""


def in_child(function: Callable[[], T]) -> T:
    """What ``function`` returns in a forked child.

    Raises ``RuntimeError`` for a child that raised, died, or did not end within
    :data:`SECONDS`.
    """
    receiver, sender = multiprocessing.Pipe(duplex=False)
    context = multiprocessing.get_context("fork")
    # No daemon, which could have no children of its own.
    child = context.Process(target=_report, args=(function, sender))
    child.start()
    sender.close()
    late: tuple[str, Any] = ("did not end", f"{SECONDS} s are over")
    try:
        answer: tuple[str, Any] = receiver.recv() if receiver.poll(SECONDS) else late
    except EOFError:
        answer = ("died", None)
    receiver.close()
    if answer is not late:
        child.join(SECONDS)
    if child.exitcode is None:
        child.kill()
        child.join()
    kind, value = answer
    if kind != "returned":
        raise RuntimeError(f"a forked child of the rank {kind}: {value or child.exitcode}")
    return value  # type: ignore[no-any-return]


def in_fresh_processes(functions: Sequence[Callable[[], T]]) -> list[T]:
    """What these return in processes that have imported no user code; all run at once.

    They are forked from a server that does not know a rank, as launched ranks are. The functions
    are pickled; raises as :func:`in_child` does.
    """
    with ExitStack() as stack:
        processes = [Server(0).process(seconds=SECONDS) for _ in functions]
        for process, function in zip(processes, functions, strict=True):
            stack.callback(process.close)
            process.run(function)
        return [process.answer() for process in processes]


def _report(function: Callable[[], Any], sender: Connection) -> None:
    try:
        sender.send(("returned", function()))
    except Exception as error:
        sender.send(("raised", f"{type(error).__name__}: {error}"))


_forgotten: list[Any] = []


def forget_rank() -> None:
    """Make this process look as if no launcher had started it. Only in a child."""
    forget_launcher()
    if dist.is_initialized():
        # Kept: its destructor would wait for threads that did not come through the fork.
        _forgotten.append(dist.group.WORLD)
        distributed_c10d._update_default_pg(None)


def become_rank(environment: Mapping[str, str]) -> None:
    """Make this process look as if a launcher had started it."""
    os.environ.update(environment)
