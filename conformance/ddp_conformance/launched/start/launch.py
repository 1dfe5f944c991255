"""Start the ranks of a run, wait for them, stop those that do not end."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import connection
from pathlib import Path
from typing import Any

from torch._C._distributed_c10d import TCPStore

from ddp_conformance.framework import nemesis
from ddp_conformance.framework.history import Record
from ddp_conformance.launched import journal
from ddp_conformance.launched.evidence import last_words
from ddp_conformance.launched.history import Ended, Happened, Left, Made
from ddp_conformance.launched.order import Order, Work
from ddp_conformance.launched.process.live import live
from ddp_conformance.launched.process.saving import SEGMENTS
from ddp_conformance.launched.start.kept_servers import Server, hash_seed
from pytest_ddp.launch import rendezvous
from pytest_ddp.system.processes import kill_group

STOPPING = 2.0
"""Seconds that a rank has to write its stack and end."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a launched run, in seconds."""

    timeout: float
    """Seconds for the whole run."""
    patience: float
    """Seconds for the others, after one rank has ended without coming to its end."""


def launch(work: Work, world_size: int, directory: Path, limits: Limits) -> list[Record]:
    """Run ``work`` on ranks of its own; what they did, and how each of them ended.

    ``directory`` becomes the working directory's parent. Whatever the ranks do, they
    have ended when this returns. Each has a hash seed of its own, so that sets of strings have
    other orders.
    """
    private, shared = directory / "ranks", directory / "run"
    shared.mkdir(exist_ok=True)
    orders = [_order(work, rank, world_size, shared, private) for rank in range(world_size)]
    for order in orders:
        Path(order.files(order.rank)).mkdir(parents=True)
    servers = [Server(rank, launches=True) for rank in range(world_size)]
    for server in servers:
        server.start()  # all at once: each imports torch
    with _store() as port:
        placed = [replace(o, environment=tuple(_environment(o, port).items())) for o in orders]
        ends = _Ranks(placed, servers).watch(limits)
    return [*_histories(orders, ends), *_files(shared)]


def _order(work: Work, rank: int, world_size: int, shared: Path, private: Path) -> Order:
    return Order(work, rank, world_size, str(shared), str(private), (), nemesis.seed())


@contextlib.contextmanager
def _store() -> Iterator[int]:
    """Serve a store as torchrun's agent does, here on loopback alone; yields its port."""
    listening = rendezvous.listen(backlog=128)
    port = int(listening.getsockname()[1])
    store = TCPStore(
        rendezvous.LOOPBACK,
        port,
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listening.detach(),
    )
    yield port
    del store


def _environment(order: Order, port: int) -> dict[str, str]:
    own = {name: text for name, text in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    torchrun = rendezvous.rank_environment(order.rank, order.world_size, port, "conformance")
    # For what a rank starts by itself.
    return own | rendezvous.HOST_ENVIRONMENT | torchrun | hash_seed(order.rank)


class _Ranks:
    """The processes of a run."""

    def __init__(self, orders: list[Order], servers: list[Server]) -> None:
        self._orders = orders
        self._processes = [server.process(answers=False, seconds=0) for server in servers]
        # Before any begins: a server that still imports torch would make its rank late by seconds.
        self._pids = [process.pid for process in self._processes]
        for process, order in zip(self._processes, orders, strict=True):
            process.run(partial(live, order))

    def watch(self, limits: Limits) -> list[Ended]:
        """Wait for all ranks, within the limits; stop those that still run."""
        deadline = time.monotonic() + limits.timeout
        left: dict[Any, int] = {p.sentinel: rank for rank, p in enumerate(self._processes)}
        order: list[int] = []
        while left:
            ready = connection.wait(list(left), max(0.0, deadline - time.monotonic()))
            if not ready:
                break
            ended = [left.pop(sentinel) for sentinel in ready]
            order += ended
            if not all(map(self._came_through, ended)):
                deadline = min(deadline, time.monotonic() + limits.patience)
        stopped = sorted(left.values())
        self._stop(stopped)
        ends = [self._end(rank, place) for place, rank in enumerate([*order, *stopped])]
        return [replace(end, code=None) if end.rank in stopped else end for end in ends]

    def _came_through(self, rank: int) -> bool:
        return self._code(rank) == 0 and self._returned(rank)

    def _code(self, rank: int) -> int | None:
        self._processes[rank].join()
        return self._processes[rank].exitcode

    def _returned(self, rank: int) -> bool:
        return any(
            isinstance(record, Happened) and record.stage == "returned"
            for record in self._records(rank)
        )

    def _records(self, rank: int) -> list[Record]:
        return journal.read(Path(self._orders[rank].files(rank)) / "journal")

    def _stop(self, ranks: list[int]) -> None:
        """SIGTERM makes a rank write its stack and end; the rest is killed."""
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pids[rank], signal.SIGTERM)
        deadline = time.monotonic() + STOPPING
        for rank in ranks:
            self._processes[rank].join(max(0.0, deadline - time.monotonic()))
        for pid in self._pids:
            kill_group(pid)

    def _end(self, rank: int, place: int) -> Ended:
        process = self._processes[rank]
        code = self._code(rank)
        kill_group(self._pids[rank])
        process.close()
        words = last_words(Path(self._orders[rank].files(rank)))
        return Ended(rank, place, code, self._returned(rank), words.error, words.phase, words.site)


def _histories(orders: list[Order], ends: list[Ended]) -> Iterator[Record]:
    by_rank: Mapping[int, Ended] = {end.rank: end for end in ends}
    for order in orders:
        files = Path(order.files(order.rank))
        yield from journal.read(files / "journal")
        yield from _segments_left(order.rank, files)
        yield by_rank[order.rank]


def _segments_left(rank: int, files: Path) -> Iterator[Left]:
    """Look for shared memory when all ranks have ended, as any of them may free it."""
    listed = files / SEGMENTS
    names = listed.read_text().splitlines() if listed.exists() else []
    for name in dict.fromkeys(names):
        segment = Path("/dev/shm") / name
        if segment.exists():
            yield Left(rank, f"the shared memory {segment}")
            segment.unlink()


def _files(shared: Path) -> Iterator[Made]:
    for path in sorted(shared.rglob("*")):
        if path.is_file():
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            yield Made(0, str(path.relative_to(shared)), digest)
