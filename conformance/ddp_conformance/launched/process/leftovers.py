"""What a run leaves behind in the process of a rank."""

from __future__ import annotations

import gc
import socket
import sys
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from ddp_conformance.launched.history import Left
from ddp_conformance.launched.order import Order
from pytest_ddp.system import processes

HELPERS = ("torch_shm_manager", "resource_tracker import main", "multiprocessing.forkserver")
"""Processes that libraries start once and keep for the life of the interpreter."""
SETTLE = 0.5
"""Seconds that a thread or a process has to end."""
REJOIN = 20.0
"""Seconds that the ranks have to make another process group."""


@dataclass(frozen=True)
class Surroundings:
    """Children and threads of this process."""

    children: frozenset[int]
    threads: frozenset[threading.Thread]

    @classmethod
    def now(cls) -> Surroundings:
        """Return the present surroundings of this process."""
        children = (c for c in processes.children() if not any(h in c.command for h in HELPERS))
        return cls(
            frozenset(child.pid for child in children),
            frozenset(threading.enumerate()),
        )

    def left(self, rank: int) -> Iterator[Left]:
        """The children and threads that are new."""
        yield from (Left(rank, what) for what in _groups())
        # A loader ends its persistent workers when it is collected.
        gc.collect()
        for thread in Surroundings.now().threads - self.threads:
            thread.join(SETTLE)
        now = Surroundings.now()
        for pid in sorted(now.children - self.children):
            processes.wait_for_end([pid], SETTLE)  # it may have been told to end
            if child := processes.process_of(pid):
                yield Left(rank, _described(child))
        for thread in sorted(now.threads - self.threads, key=str):
            if type(thread).__module__.partition(".")[0] != "tqdm":
                yield Left(rank, f"the thread {thread.name}")


def _described(child: processes.Process) -> str:
    if processes.is_fork(child):
        return "a forked child process"
    return f"the child process {child.command[:60]}"


def _groups() -> Iterator[str]:
    """The process groups that still exist."""
    if dist.is_initialized():
        number = len(dist.distributed_c10d._world.pg_map)
        yield "the default process group" + (f" and {number - 1} more" if number > 1 else "")


def rejoin(order: Order) -> Iterator[Left]:
    """Whether a new process group can be made where one was destroyed."""
    if dist.is_initialized():
        return
    store = FileStore(f"{order.private}/again", order.world_size)
    try:
        dist.init_process_group(
            "gloo",
            store=store,
            rank=order.rank,
            world_size=order.world_size,
            timeout=timedelta(seconds=REJOIN),
        )
        dist.all_reduce(torch.ones(1))
        dist.destroy_process_group()
    except Exception as error:
        yield Left(order.rank, f"a state in which no new process group can be made ({error})")


class Sockets:
    """Sockets that Python code binds. Those of C++, such as gloo's, are the library's to close."""

    def __init__(self) -> None:
        self._bound: list[weakref.ref[socket.socket]] = []
        sys.addaudithook(self._on_event)

    def _on_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "socket.bind" and isinstance(arguments[0], socket.socket):
            self._bound.append(weakref.ref(arguments[0]))

    def left(self, rank: int) -> Iterator[Left]:
        """The sockets that still listen."""
        for reference in self._bound:
            bound = reference()
            if bound is not None and bound.fileno() >= 0 and _listens(bound):
                # The number of a port is another one in each run.
                yield Left(rank, "a listening socket")


def _listens(bound: socket.socket) -> bool:
    return bool(bound.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
