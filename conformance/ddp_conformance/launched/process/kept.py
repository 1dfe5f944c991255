"""A server that outlives a rank, and what its forks do.

It forks for its callers, which are ranks. A fork works in its caller's place and ends with it: a
rank may be killed at any moment.

What a fork imports, the next fork has to import again: a file of tests that imports Lightning
takes seconds. So a fork that is told to keep its imports forks a server, for the next callers with
the same imports.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import process, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, NoReturn, TypeAlias

import numpy.random  # noqa: F401 - for those who fork
import torch.testing._internal.distributed.fake_pg  # noqa: F401 - for those who fork

from ddp_conformance.framework.registry import all_checks
from ddp_conformance.launched.order import Imported
from pytest_ddp.rank.startup.preload import without_collector
from pytest_ddp.rank.startup.threads import problem
from pytest_ddp.system.processes import kill_group

INTERVAL = 10.0
"""Seconds between two looks whether a server's address is still there."""

Kept: TypeAlias = tuple[str, tuple[Imported, ...]]
"""The address of a server that keeps imports, and what it imports."""


@dataclass(frozen=True, slots=True)
class CallerPlace:
    """Where a fork works: in the place of its caller."""

    environment: dict[str, str]
    path: list[str]
    argv: list[str]
    directory: str
    tempdir: str
    """That of multiprocessing."""
    seconds: int
    """After which the kernel ends the fork, whatever it does; never if it is 0."""
    keeps: Kept | None
    answers: bool
    """It sends what its function returns or raises. Else the function ends it as its program."""


def listen(address: str) -> socket.socket:
    """At a new socket in the file system that only this user may connect to."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(address)
    os.chmod(address, 0o600)
    listening.listen()
    return listening


def serve(listener: int, host: int, preload: str) -> NoReturn:
    """Import the module ``preload`` unless it is empty, and fork for each caller.

    Ends with the process of the pidfd ``host``, or with our address.
    """
    with without_collector():
        # What files of tests import, and pytest with it: a fork would need 0.25 s of CPU for that.
        # By name, as the public names are above this module.
        importlib.import_module("ddp_conformance.api")
        all_checks()
        if preload:
            importlib.import_module(preload)
    # Its forks share this tracker, which outlives them. One of their own would end with them, and
    # remove the shared memory that a launched rank has left before anybody has seen it.
    resource_tracker.ensure_running()
    _fork_for_callers(socket.socket(fileno=listener), host)


@dataclass(frozen=True, slots=True)
class _Fork:
    process: BaseProcess
    caller: Connection

    def tell(self) -> None:
        """Tell the caller the exit code, unless it is gone."""
        self.process.join()
        with contextlib.suppress(OSError):
            self.caller.send(self.process.exitcode)

    def kill(self) -> None:
        """With what it has started, such as workers."""
        if self.process.is_alive():
            self.process.kill()
        kill_group(self.process.pid or 0)
        self.caller.close()


# A server waits for these at once:
#
# descriptor        is ready when                        what it does then
# ----------------  -----------------------------------  ------------------------------------------
# listening         a caller connects                    waits for its first byte
# a new caller      it sends, or closes: it has only     forks for it, or forgets it
#                   seen to it that the server is there
# end of a fork     the fork has ended                   sends the caller the exit code
# caller of a fork  it has closed, or is dead            kills what is left of the fork
# host              the ranks' host has ended            kills all forks, and ends


def _fork_for_callers(listening: socket.socket, host: int) -> NoReturn:
    callers: dict[int, socket.socket] = {}
    forks: dict[int, _Fork] = {}
    ends: dict[int, _Fork] = {}
    waiting = select.poll()
    waiting.register(listening, select.POLLIN)
    waiting.register(host, select.POLLIN)
    address = listening.getsockname()
    while os.path.exists(address):
        ready = [descriptor for descriptor, _ in waiting.poll(INTERVAL * 1000)]
        if host in ready:
            break
        for descriptor in ready:
            if descriptor == listening.fileno():
                caller = listening.accept()[0]
                callers[caller.fileno()] = caller
                waiting.register(caller, select.POLLIN)
                continue
            waiting.unregister(descriptor)
            if descriptor in forks:
                forks.pop(descriptor).kill()
            elif descriptor in ends:
                ends.pop(descriptor).tell()
                os.close(descriptor)
            elif not callers[descriptor].recv(1, socket.MSG_PEEK):
                callers.pop(descriptor).close()
            else:
                connection = Connection(callers.pop(descriptor).detach())
                inherited = [listening.fileno(), *callers, *forks, *ends]
                fork = _Fork(_start(connection, inherited, host), connection)
                end = os.pidfd_open(fork.process.pid or 0)
                forks[descriptor] = ends[end] = fork
                waiting.register(descriptor, select.POLLRDHUP)  # the fork reads what it sends
                waiting.register(end, select.POLLIN)
    for fork in forks.values():
        fork.kill()
    os._exit(0)


def _start(caller: Connection, inherited: list[int], host: int) -> BaseProcess:
    forked = multiprocessing.get_context("fork").Process(
        target=_work, args=(caller, inherited, host), name="MainProcess"
    )
    forked.start()
    return forked


# ---------------------------------------------------------------- a fork


def _work(caller: Connection, inherited: list[int], host: int) -> None:
    os.setsid()
    for descriptor in inherited:
        os.close(descriptor)
    caller.send(os.getpid())
    place: CallerPlace = caller.recv()
    _take(place)
    if place.keeps is not None:
        _keep(place.keeps, caller, host)
    os.close(host)
    if place.answers:
        _answer(caller)
        os._exit(0)  # it waits for no thread that the function has left
    function: Callable[[], object] = caller.recv()
    caller.close()
    function()


def _take(place: CallerPlace) -> None:
    signal.alarm(place.seconds)
    os.environ.clear()
    os.environ.update(place.environment)
    sys.path[:] = place.path
    sys.argv[:] = place.argv
    os.chdir(place.directory)
    current: Any = process.current_process()
    current._config["tempdir"] = place.tempdir


def _answer(caller: Connection) -> None:
    try:
        function: Callable[[], object] = caller.recv()
        answer = ("returned", function())
    except BaseException as error:
        answer = ("raised", f"{type(error).__name__}: {error}")
    caller.send(answer)


def _keep(kept: Kept, caller: Connection, host: int) -> None:
    """Import, and fork a server for the next callers.

    There is none if forks of this process may not work. Then its address refuses connections.
    """
    address, imports = kept
    with listen(address) as listening:
        try:
            with without_collector():
                for one in imports:
                    one.load()
        except BaseException:
            return  # the function raises it again, for the caller
        if problem("a server") is None and os.fork() == 0:
            os.setsid()
            caller.close()
            signal.alarm(0)
            _fork_for_callers(listening, host)
