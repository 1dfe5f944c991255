"""Processes with a hash seed of their own, forked from servers that outlive the rank.

Each test may have other ranks, and a server takes seconds to import torch. So each server is
started once in a session, by the first rank that needs it. It ends when the ranks' host removes
the folder of the session, or with the host.
"""

from __future__ import annotations

import glob
import os
import signal
import subprocess
import sys
import zlib
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cached_property
from multiprocessing import util
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from ddp_conformance.framework import nemesis
from ddp_conformance.launched.order import Imported
from ddp_conformance.launched.process.kept import CallerPlace, Kept
from ddp_conformance.launched.process.parent import ServerOrder, connect, listen

T = TypeVar("T")

SECONDS = 20
"""Seconds after which a process that answers is taken to hang."""

SINGLE_THREADED = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""Variables for a server: one with a pool of threads is no place to fork from."""

PRELOAD = "ddp_conformance.launched.process.preload"

_PARENT = """
import os, sys
if os.fork():  # no child of the rank, which must leave none
    os._exit(0)
sys.path[:] = {path!r}
from ddp_conformance.launched.process.parent import be_parent
be_parent({listener}, {host}, {address!r})
"""

_SERVER = """
import sys
sys.path[:] = {path!r}
from pytest_ddp.rank.startup.preload import without_collector
with without_collector():  # a fifth of the time that it takes to import torch
    from ddp_conformance.launched.process.kept import serve
serve(int(sys.argv[1]), int(sys.argv[2]), {address!r}, {parent!r}, {preload!r})
"""


def hash_seed(number: int) -> dict[str, str]:
    """The hash seed of this number as a variable: always the same in a session."""
    return {"PYTHONHASHSEED": str((1000 * nemesis.seed() + number + 1) % 2**32)}


class Process:
    """A fork of a server, which waits for a function, and its exit code when it has ended.

    It ends with this rank.
    """

    def __init__(self, connection: Connection, place: CallerPlace) -> None:
        self.exitcode: int | None = None
        self._connection = connection
        connection.send(place)

    @cached_property
    def pid(self) -> int:
        """The process's number, known when it is there; its process group and session have the
        same."""
        try:
            return int(self._connection.recv())
        except EOFError:
            raise RuntimeError("a server of forked processes has died") from None

    def run(self, function: Callable[[], object]) -> None:
        """Send the function, which is pickled."""
        self._connection.send(function)

    @property
    def sentinel(self) -> int:
        """A descriptor for :func:`multiprocessing.connection.wait`."""
        return self._connection.fileno() if self.pid else -1

    def join(self, timeout: float | None = None) -> None:
        """Wait until the process has ended; with no timeout, for ever."""
        if self.exitcode is None and self.pid and self._connection.poll(timeout):
            self.exitcode = self._connection.recv()

    def answer(self) -> Any:
        """What the process's function returns; raises ``RuntimeError`` if there is nothing."""
        try:
            got = self._connection.recv() if self.pid else None
        except (EOFError, OSError):
            got = None
        if not isinstance(got, tuple):
            late = got == -signal.SIGALRM
            got = ("did not end in time" if late else "died", f"exit code {got}")
        kind, value = got
        if kind != "returned":
            raise RuntimeError(f"a forked process {kind}: {value}")
        return value

    def close(self) -> None:
        """Let the server kill what is left of the process."""
        self._connection.close()


@dataclass(frozen=True)
class Server:
    """The server with the hash seed of this number."""

    seed: int
    launches: bool = False
    """Whether the server has also imported what launched ranks use, which takes 1.5 s of CPU."""

    def start(self) -> None:
        """Start the server unless it runs; does not wait for its imports."""
        self._connected().close()

    def process(
        self, imports: Sequence[Imported] = (), *, answers: bool = True, seconds: int = SECONDS
    ) -> Process:
        """Start a process; does not wait for the server's imports.

        The modules of ``imports`` are kept for the next call with the same modules, whose
        environment may be another one than that in which they were imported.
        """
        connection, keeps = self._connected_with(tuple(imports))
        place = CallerPlace(
            environment={**os.environ, **hash_seed(self.seed)},
            path=sys.path,
            argv=sys.argv,
            directory=os.getcwd(),
            tempdir=util.get_temp_dir(),
            seconds=seconds,
            keeps=keeps,
            answers=answers,
        )
        return Process(connection, place)

    @property
    def _address(self) -> str:
        use = "launched" if self.launches else "asked"
        return os.path.join(util.get_temp_dir(), f"{use}-{nemesis.seed()}-{self.seed}")

    def _connected_with(self, imports: tuple[Imported, ...]) -> tuple[Connection, Kept | None]:
        """A connection, and what its fork has to keep."""
        if not imports:
            return self._connected(), None
        others = f"{self._address}-"
        modules = sorted({(one.module, one.file) for one in imports})
        address = f"{others}{zlib.crc32(repr(modules).encode()):08x}"
        try:
            return connect(address), None
        except ConnectionRefusedError:  # what it has imported leaves no process to fork from
            return self._connected(), None
        except FileNotFoundError:
            # The tests of a file follow each other: the imports of one file are enough.
            for other in glob.glob(f"{glob.escape(others)}*"):
                os.unlink(other)
            return self._connected(), (address, imports)

    def _connected(self) -> Connection:
        try:
            return connect(self._address)
        except (FileNotFoundError, ConnectionRefusedError):
            self._start()
            return connect(self._address)

    def _start(self) -> None:
        preload = PRELOAD if self.launches else ""
        parent, address = _address_of_parent(), self._address
        main = _SERVER.format(path=sys.path, address=address, parent=parent, preload=preload)
        environment = dict(os.environ) | SINGLE_THREADED | hash_seed(self.seed)
        order = ServerOrder(address, (*_interpreter(), "-c", main), environment, os.getcwd())
        with _parent() as connection:
            connection.send(order)
            connection.recv()


def in_process_of(seed: int, function: Callable[[], T], imports: Sequence[Imported] = ()) -> T:
    """What ``function`` returns in a process with the hash seed of this number; it is pickled.

    Raises ``RuntimeError`` if ``function`` raises, dies or takes more than :data:`SECONDS`.
    """
    with closing(Server(seed).process(imports)) as process:
        process.run(function)
        return process.answer()  # type: ignore[no-any-return]


def _address_of_parent() -> str:
    return os.path.join(util.get_temp_dir(), "parent")


def _parent() -> Connection:
    """The process that starts servers, which is started by the first rank that needs one."""
    address = _address_of_parent()
    try:
        return connect(address)
    except ConnectionRefusedError:
        os.unlink(address)  # it has died
    except FileNotFoundError:
        pass
    with suppress(FileExistsError), listen(address) as listening:
        host = os.pidfd_open(os.getppid())
        numbers = {"listener": listening.fileno(), "host": host}
        main = _PARENT.format(path=sys.path, address=address, **numbers)
        try:
            subprocess.run(
                [*_interpreter(), "-c", main],
                pass_fds=list(numbers.values()),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                check=True,
            )
        finally:
            os.close(host)
    return connect(address)


def _interpreter() -> tuple[str, ...]:
    options = util._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return (sys.executable, *options)
