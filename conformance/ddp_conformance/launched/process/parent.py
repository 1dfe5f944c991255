"""The one parent of all processes that the ranks of a session launch.

Under torchrun all ranks of a machine have one parent, and programs name files by its number. So a
process that is little else starts the servers, and adopts what they fork: a server forks twice, so
that its fork is an orphan, which the kernel gives to the nearest ancestor that adopts orphans.

It imports no torch.
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import NoReturn, TypeAlias

from pytest_ddp.system.processes import adopt_orphans, read

INTERVAL = 10.0
"""Seconds between two looks whether an address is still there."""


@dataclass(frozen=True, slots=True)
class ServerOrder:
    """A server that is to be started, unless it is there."""

    address: str
    command: tuple[str, ...]
    """Two descriptors are appended: a socket that listens at the address, and the ranks' host."""
    environment: dict[str, str]
    directory: str


Request: TypeAlias = ServerOrder | int
"""Start a server; or give the exit code of a fork that has ended."""


def listen(address: str) -> socket.socket:
    """Listen at a new socket in the file system that only this user may connect to.

    Raises ``FileExistsError`` if there is one: of two that listen at once, one does.
    """
    own = os.path.join(os.path.dirname(address), f".{os.getpid()}")  # paths of sockets are short
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(own)
    os.chmod(own, 0o600)
    listening.listen()
    try:
        os.link(own, address)
    finally:
        os.unlink(own)
    return listening


def connect(address: str) -> Connection:
    """Connect to a process that listens there; an ``OSError`` if none does."""
    with socket.socket(socket.AF_UNIX) as connecting:
        connecting.connect(address)
        return Connection(connecting.detach())


def be_parent(listener: int, host: int, address: str) -> NoReturn:
    """Serve requests until the process of the pidfd ``host`` has ended, or the address is gone."""
    adopt_orphans()
    listening = socket.socket(fileno=listener)
    callers: dict[int, Connection] = {}
    waiting = select.poll()
    for descriptor in (listener, host):
        waiting.register(descriptor, select.POLLIN)
    while os.path.exists(address):
        ready = [descriptor for descriptor, _ in waiting.poll(INTERVAL * 1000)]
        if host in ready:
            break
        for descriptor in ready:
            if descriptor == listener:
                caller = Connection(listening.accept()[0].detach())
                callers[caller.fileno()] = caller
                waiting.register(caller, select.POLLIN)
                continue
            try:
                request: Request = callers[descriptor].recv()
                callers[descriptor].send(_answer(request, host))
            except (EOFError, OSError):
                waiting.unregister(descriptor)
                callers.pop(descriptor).close()
    os._exit(0)


def _answer(request: Request, host: int) -> int:
    if isinstance(request, ServerOrder):
        return _start(request, host)
    _reap_orphans()
    return os.waitstatus_to_exitcode(os.waitpid(request, 0)[1])


def _start(order: ServerOrder, host: int) -> int:
    try:
        connect(order.address).close()
    except ConnectionRefusedError:
        os.unlink(order.address)
    except FileNotFoundError:
        pass
    else:
        return 0
    with listen(order.address) as listening:
        server = subprocess.Popen(
            [*order.command, str(listening.fileno()), str(host)],
            env=order.environment,
            cwd=order.directory,
            pass_fds=[listening.fileno(), host],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    return server.pid


def _reap_orphans() -> None:
    """What forks have left. A fork itself, which leads its session, is its server's to ask for."""
    for child in map(int, read(f"/proc/self/task/{os.getpid()}/children").split()):
        state, _, _, session = read(f"/proc/{child}/stat").rpartition(b")")[2].split()[:4]
        if state == b"Z" and int(session) != child:
            os.waitpid(child, 0)
