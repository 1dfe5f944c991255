"""A server that outlives a rank, and what its forks do.

It forks for its callers, which are ranks. A fork works in its caller's place and ends with it: a
rank may be killed at any moment. The parent of all forks is that of the servers (:mod:`.parent`).

What a fork imports, the next fork has to import again: a file of tests that imports Lightning
takes seconds. So a fork that is told to keep its imports forks a server, for the next callers with
the same imports.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing import process, resource_tracker
from multiprocessing.connection import Connection
from typing import Any, NoReturn, TypeAlias

import numpy.random  # noqa: F401 - for those who fork
import torch.testing._internal.distributed.fake_pg  # noqa: F401 - for those who fork

from ddp_conformance.framework.registry import all_checks
from ddp_conformance.launched.order import Imported
from ddp_conformance.launched.process.parent import INTERVAL, connect, listen
from ddp_conformance.launched.process.program_end import end_as_program
from pytest_ddp.rank.startup.preload import without_collector
from pytest_ddp.rank.startup.threads import problem
from pytest_ddp.system.processes import kill_group

Kept: TypeAlias = tuple[str, tuple[Imported, ...]]
"""The address of a server that keeps imports, and what it imports."""


@dataclass(frozen=True, slots=True)
class CallerPlace:
    """What a fork takes over to work in the place of its caller."""

    environment: dict[str, str]
    path: list[str]
    argv: list[str]
    directory: str
    tempdir: str
    """The folder of multiprocessing."""
    seconds: int
    """Seconds after which the kernel ends the fork, whatever it does; never if it is 0."""
    keeps: Kept | None
    answers: bool
    """Whether the fork sends what its function returns or raises. Else the function ends it as its
    program."""


@dataclass(frozen=True, slots=True)
class _Place:
    """The address of a server, and the processes with which it ends."""

    address: str
    """The server's address, at which it listens."""
    host: int
    """A pidfd of the ranks' host, with which it ends."""
    parent: str
    """The address of the parent of all servers."""


def serve(listener: int, host: int, address: str, parent: str, preload: str) -> NoReturn:
    """Import the module ``preload`` unless it is empty, and fork for each caller.

    Ends with the process of the pidfd ``host``, with our address, or with the process at the
    address ``parent``.
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
    _fork_for_callers(socket.socket(fileno=listener), _Place(address, host, parent))


@dataclass(slots=True)
class _Fork:
    pid: int
    caller: Connection
    ended: bool = False

    def tell(self, parent: Connection) -> None:
        """Tell the caller the exit code, unless it is gone."""
        self.ended = True
        parent.send(self.pid)
        code = parent.recv()
        with contextlib.suppress(OSError):
            self.caller.send(code)

    def kill(self) -> None:
        """Kill the fork, and what it has started, such as workers."""
        if not self.ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        kill_group(self.pid)
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


def _fork_for_callers(listening: socket.socket, place: _Place) -> NoReturn:
    global forked_by
    forked_by = os.getpid()
    forks: dict[int, _Fork] = {}
    try:
        _until_the_host_ends(listening, place, forks)
    finally:
        for fork in forks.values():
            fork.kill()
        os._exit(0)


def _until_the_host_ends(listening: socket.socket, place: _Place, forks: dict[int, _Fork]) -> None:
    parent, host = connect(place.parent), place.host
    callers: dict[int, socket.socket] = {}
    ends: dict[int, _Fork] = {}
    waiting = select.poll()
    waiting.register(listening, select.POLLIN)
    waiting.register(host, select.POLLIN)
    while os.path.exists(place.address):
        ready = [descriptor for descriptor, _ in waiting.poll(INTERVAL * 1000)]
        if host in ready:
            return
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
                ends.pop(descriptor).tell(parent)
                os.close(descriptor)
            elif not callers[descriptor].recv(1, socket.MSG_PEEK):
                callers.pop(descriptor).close()
            else:
                connection = Connection(callers.pop(descriptor).detach())
                inherited = [listening.fileno(), parent.fileno(), *callers, *forks, *ends]
                fork = _Fork(_start(connection, inherited, place), connection)
                end = os.pidfd_open(fork.pid)
                forks[descriptor] = ends[end] = fork
                waiting.register(descriptor, select.POLLRDHUP)  # the fork reads what it sends
                waiting.register(end, select.POLLIN)


def _start(caller: Connection, inherited: list[int], place: _Place) -> int:
    """Fork, by a process between that leaves an orphan to the servers' parent; its number."""
    numbers, telling = os.pipe()
    between = os.fork()
    if between == 0:
        own, pid = os.getpid(), os.fork()
        if pid == 0:
            while os.getppid() == own:
                os.sched_yield()
            try:
                _work(caller, [numbers, telling, *inherited], place)
            finally:
                os._exit(1)
        os.write(telling, str(pid).encode())
        os._exit(0)
    os.waitpid(between, 0)
    pid = int(os.read(numbers, 32))
    os.close(numbers)
    os.close(telling)
    return pid


# ---------------------------------------------------------------- a fork

forked_by = 0
"""The server that this process is a fork of."""


def _work(caller: Connection, inherited: list[int], server: _Place) -> NoReturn:
    os.setsid()
    for descriptor in inherited:
        os.close(descriptor)
    caller.send(os.getpid())
    place: CallerPlace = caller.recv()
    _take(place)
    if place.keeps is not None:
        _keep(place.keeps, caller, server)
    os.close(server.host)
    if place.answers:
        _answer(caller)
        os._exit(0)  # it waits for no thread that the function has left
    function: Callable[[], object] = caller.recv()
    caller.close()
    end_as_program(function)


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


def _keep(kept: Kept, caller: Connection, place: _Place) -> None:
    """Import, and fork a server for the next callers.

    There is none if forks of this process may not work. Then its address refuses connections.
    """
    address, imports = kept
    try:
        listening = listen(address)
    except FileExistsError:
        return  # another fork keeps them
    with listening:
        try:
            with without_collector():
                for one in imports:
                    one.load()
        except BaseException:
            return  # the function raises it again, for the caller
        if problem("a server") is not None:
            return
        leaving, left = os.pipe()
        if os.fork() == 0:
            os.setsid()
            os.close(leaving)
            os.close(left)
            caller.close()
            signal.alarm(0)
            _fork_for_callers(listening, replace(place, address=address))
    # What is in this process's group is killed when the caller has its answer.
    os.close(left)
    os.read(leaving, 1)
    os.close(leaving)
