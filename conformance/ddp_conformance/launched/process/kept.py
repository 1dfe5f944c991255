"""The main loop of a server that outlives a rank, and what its forks do.

What a fork imports, the next fork has to import again: a file of tests that imports Lightning
takes seconds. So a fork that is told to keep its imports becomes a server itself, and forks for
its caller and for the next callers with the same imports.
"""

from __future__ import annotations

import importlib
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Iterable
from multiprocessing import process
from multiprocessing.connection import Connection
from typing import Any, NoReturn, TypeAlias

import numpy.random  # noqa: F401 - for those who fork
import torch.testing._internal.distributed.fake_pg  # noqa: F401 - for those who fork

from ddp_conformance.framework.registry import all_checks
from ddp_conformance.launched.order import Named
from pytest_ddp.rank.startup.preload import without_collector
from pytest_ddp.rank.startup.threads import problem
from pytest_ddp.system.processes import kill_group

SECONDS = 20
"""After which the kernel ends a fork, whatever it does."""


INTERVAL = 10.0
"""Seconds between two looks whether a server's address is still there."""

Kept: TypeAlias = tuple[str, tuple[Named, ...]]
"""The address of a server that keeps imports, and what it imports."""


def listen(address: str) -> socket.socket:
    """At a new socket in the file system that only this user may connect to."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(address)
    os.chmod(address, 0o600)
    listening.listen()
    return listening


def serve(listener: int, host: int) -> NoReturn:
    """Fork for each caller; end with the process of the pidfd ``host``, or with our address."""
    with without_collector():
        # What files of tests import, and pytest with it: a fork would need 0.25 s of CPU for that.
        # By name, as the public names are above this module.
        importlib.import_module("ddp_conformance.api")
        all_checks()
    _fork_for_callers(socket.socket(fileno=listener), host, {})


def _fork_for_callers(listening: socket.socket, host: int, forks: dict[int, int]) -> NoReturn:
    """``forks`` has the process of each pidfd."""
    callers: list[socket.socket] = []
    while os.path.exists(listening.getsockname()):
        waited: list[socket.socket | int] = [listening, host, *callers, *forks]
        ready = select.select(waited, [], [], INTERVAL)[0]
        for end in [end for end in forks if end in ready or host in ready]:
            _end(forks.pop(end))
            os.close(end)
        if host in ready:
            break
        if listening in ready:
            callers.append(listening.accept()[0])
        for caller in [caller for caller in callers if caller in ready]:
            callers.remove(caller)
            # A rank that only sees to it that this server is there closes its connection.
            if caller.recv(1, socket.MSG_PEEK):
                if (pid := os.fork()) == 0:
                    _be_a_fork(caller, (listening, *callers), forks, host)
                forks[os.pidfd_open(pid)] = pid
            caller.close()
    os._exit(0)


def _be_a_fork(
    caller: socket.socket, others: Iterable[socket.socket], forks: Iterable[int], host: int
) -> NoReturn:
    os.setpgid(0, 0)
    signal.alarm(SECONDS)
    for other in others:
        other.close()
    for end in forks:
        os.close(end)
    try:
        answer(Connection(caller.detach()), host)
    finally:
        os._exit(0)  # else the interpreter would take torch down, which takes 0.2 s


def _end(fork: int) -> None:
    """Kill what a fork has left, such as workers: they hold its connection, and a caller waits."""
    kill_group(fork)
    os.waitpid(fork, 0)


def answer(connection: Connection, host: int) -> None:
    """Take over the caller's place; send what its function returns or raises."""
    place = connection.recv()
    os.environ.clear()
    os.environ.update(place["environment"])
    sys.path[:] = place["path"]
    os.chdir(place["directory"])
    current: Any = process.current_process()
    current._config["tempdir"] = place["tempdir"]
    if place["keeps"]:
        _keep(place["keeps"], connection, host)
    try:
        function: Callable[[], object] = connection.recv()
        answer = ("returned", function())
    except BaseException as error:
        answer = ("raised", f"{type(error).__name__}: {error}")
    connection.send(answer)


def _keep(kept: Kept, connection: Connection, host: int) -> None:
    """Import, and return in a fork of this process, which becomes a server.

    Returns in this process if forks of it may not work. Then its address refuses connections.
    """
    address, imports = kept
    with listen(address) as listening:
        try:
            with without_collector():
                for named in imports:
                    named.load()
        except BaseException:
            return  # the function raises it again, for the caller
        if problem("a server") is None and (pid := os.fork()):
            connection.close()
            signal.alarm(0)
            _fork_for_callers(listening, host, {os.pidfd_open(pid): pid})
    os.setpgid(0, 0)
    signal.alarm(SECONDS)
