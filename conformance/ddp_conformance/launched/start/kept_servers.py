"""Processes with a hash seed of their own, forked from servers that outlive the rank.

A rank is replaced when its subject has left something behind, and a server takes seconds to
import torch. So each server is started once in a session, by the first rank that needs it. It
ends when the ranks' host removes the folder of the session, or with the host.
"""

from __future__ import annotations

import glob
import os
import socket
import subprocess
import sys
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import util
from multiprocessing.connection import Connection
from typing import TypeVar

from ddp_conformance.framework import nemesis
from ddp_conformance.launched.order import Named
from ddp_conformance.launched.process.kept import Kept, listen
from ddp_conformance.launched.start.launch import hash_seed
from ddp_conformance.launched.start.servers import SINGLE_THREADED

T = TypeVar("T")


_MAIN = """
import os, sys
if os.fork():  # no child of the rank, which must leave none
    os._exit(0)
sys.path[:] = {path!r}
from pytest_ddp.rank.startup.preload import without_collector
with without_collector():  # a fifth of the time that it takes to import torch
    from ddp_conformance.launched.process.kept import serve
serve({listener}, {host})
"""


def start_servers(seeds: Sequence[int]) -> None:
    """Start the servers that do not run yet, all at once, as each imports torch."""
    for seed in seeds:
        _connected(seed).close()


def in_process_of(seed: int, function: Callable[[], T], imports: Sequence[Named] = ()) -> T:
    """What ``function`` returns in a process with the hash seed of this number; it is pickled.

    The modules of ``imports`` are kept for the next call with the same modules, whose environment
    may be another one than that in which they were imported. Raises ``RuntimeError`` if
    ``function`` raises, dies or takes too long.
    """
    connection, keeps = _connected_with(seed, tuple(imports))
    with connection:
        try:
            connection.send(
                {
                    "environment": {**os.environ, **hash_seed(seed)},
                    "path": sys.path,
                    "directory": os.getcwd(),
                    "tempdir": util.get_temp_dir(),
                    "keeps": keeps,
                }
            )
            connection.send(function)
            kind, value = connection.recv()
        except (EOFError, OSError):
            kind, value = "died", ""
    if kind != "returned":
        raise RuntimeError(f"a process with another hash seed {kind}: {value}")
    return value  # type: ignore[no-any-return]


def _connected_with(seed: int, imports: tuple[Named, ...]) -> tuple[Connection, Kept | None]:
    """A connection, and what its fork has to keep."""
    if not imports:
        return _connected(seed), None
    others = f"{_address(seed)}-"
    modules = sorted({(named.module, named.file) for named in imports})
    address = f"{others}{zlib.crc32(repr(modules).encode()):08x}"
    try:
        return _connect(address), None
    except ConnectionRefusedError:  # what it has imported leaves no process to fork from
        return _connected(seed), None
    except FileNotFoundError:
        # The tests of a file follow each other: the imports of one file are enough.
        for other in glob.glob(f"{glob.escape(others)}*"):
            os.unlink(other)
        return _connected(seed), (address, imports)


def _connected(seed: int) -> Connection:
    address = _address(seed)
    try:
        return _connect(address)
    except (FileNotFoundError, ConnectionRefusedError):
        _start(address, seed)
        return _connect(address)


def _connect(address: str) -> Connection:
    with socket.socket(socket.AF_UNIX) as connecting:
        connecting.connect(address)
        return Connection(connecting.detach())


def _address(seed: int) -> str:
    return os.path.join(util.get_temp_dir(), f"hash-seed-{nemesis.seed()}-{seed}")


def _start(address: str, seed: int) -> None:
    with suppress(FileNotFoundError):
        os.unlink(address)
    with listen(address) as listening:
        host = os.pidfd_open(os.getppid())
        numbers = {"listener": listening.fileno(), "host": host}
        options = util._args_from_interpreter_flags()  # type: ignore[attr-defined]
        try:
            subprocess.run(
                [sys.executable, *options, "-c", _MAIN.format(path=sys.path, **numbers)],
                env=dict(os.environ) | SINGLE_THREADED | hash_seed(seed),
                pass_fds=list(numbers.values()),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                check=True,
            )
        finally:
            os.close(host)
