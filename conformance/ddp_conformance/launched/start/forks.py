"""Child processes of a rank: forks of it, and processes that have never been one."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Generic, TypeVar

import torch.distributed as dist
from torch.distributed import distributed_c10d

from ddp_conformance.launched.start.launch import SERVER
from ddp_conformance.lockstep.machines import forget_launcher

T = TypeVar("T")

SECONDS = 60.0
"""Seconds after which a child is taken to hang."""


def in_child(function: Callable[[], T]) -> T:
    """What ``function`` returns in a forked child.

    Raises ``RuntimeError`` for a child that raised, died, or did not end within
    :data:`SECONDS`.
    """
    context = multiprocessing.get_context("fork")
    child: _Child[T] = _Child(
        lambda sender: context.Process(target=_report, args=(function, sender))
    )
    return child.answer()


def in_fresh_processes(functions: Sequence[Callable[[], T]]) -> list[T]:
    """What these return in processes that have imported no user code; all run at once.

    They are forked as launched ranks are, from a server that does not know a rank. The functions
    are pickled; raises as :func:`in_child` does.
    """

    def fresh(function: Callable[[], T]) -> _Child[T]:
        return _Child(lambda sender: SERVER.process(_report, (function, sender)))

    with ExitStack() as stack:
        children = [fresh(function) for function in functions]
        for child in children:
            stack.callback(child.end)
        return [child.answer() for child in children]


class _Child(Generic[T]):
    """A child process that sends one result."""

    def __init__(self, make: Callable[[Connection], BaseProcess]) -> None:
        self._receiver, sender = multiprocessing.Pipe(duplex=False)
        self._process = make(sender)  # no daemon, which could have no children of its own
        self._process.start()
        sender.close()

    def answer(self) -> T:
        """Wait for the result; raises ``RuntimeError`` if there is none."""
        receiver = self._receiver
        try:
            late = ("did not end", f"{SECONDS:g} s are over")
            answer: tuple[str, Any] = receiver.recv() if receiver.poll(SECONDS) else late
        except EOFError:
            answer = ("died", None)
        if answer is not late:
            self._process.join(SECONDS)
        self.end()
        kind, value = answer
        if kind != "returned":
            reason = value or self._process.exitcode
            raise RuntimeError(f"a forked child of the rank {kind}: {reason}")
        return value  # type: ignore[no-any-return]

    def end(self) -> None:
        """Kill the process if it still runs."""
        self._receiver.close()
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()


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
