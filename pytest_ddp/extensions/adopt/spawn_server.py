"""The pytest process's handle of the service that forks processes in place of ``spawn``."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence

from pytest_ddp.extensions.adopt.ranks.served_messages import (
    BeginWatch,
    Serve,
    Served,
    ServiceReady,
)
from pytest_ddp.launch.rendezvous import NOT_FOR_HOST
from pytest_ddp.protocol.channel import Channel, ChannelError
from pytest_ddp.protocol.host_messages import Collected
from pytest_ddp.protocol.program import command
from pytest_ddp.system import processes, tempfiles
from pytest_ddp.system.stdlib import os, socket, subprocess

_SAFE = {
    # OpenBLAS starts its threads when it is imported.
    "OPENBLAS_NUM_THREADS": "1",
    # Counting GPUs must not initialise CUDA in the process that forks.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}
_READ_AT_IMPORT = re.compile(
    "(OMP|KMP|GOMP|MKL|NUMEXPR|ATEN|LD|PYTHON)_?|OPENBLAS_|TORCH_LOGS|TORCH_DISTRIBUTED_DEBUG"
)
"""Variables that libraries read only when they are imported."""


_SERVICE = "pytest_ddp.extensions.adopt.spawn_server_process"


class NotServedError(Exception):
    """No process was made; the text is the reason, as the end of a sentence."""


class SpawnServer:
    """One service, from its start until the pytest process ends."""

    def __init__(self, environment: dict[str, str]) -> None:
        """Start the service; it imports torch meanwhile.

        Args:
            environment: the environment of the service.
        """
        self._for = _read_at_import(environment)
        self._log = tempfiles.create("pytest-ddp service")
        self._problem: str | None = None
        self._ready = False
        ours, theirs = socket.socketpair()
        self._channel = Channel(ours)
        with theirs:
            role = {"descriptor": theirs.fileno(), "service": _SERVICE, "parent": os.getpid()}
            process = subprocess.Popen(
                command(role),
                env={k: v for k, v in environment.items() if k not in NOT_FOR_HOST} | _SAFE,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
            )
        process.returncode = 0  # it outlives the pytest process, and Popen must not warn

    def fits(self, environment: dict[str, str]) -> bool:
        """Whether what the service has imported is right for these variables, too."""
        return self._problem is None and _read_at_import(environment) == self._for

    def collected(self, message: Collected) -> None:
        """Send the collected test files, so that the server imports what they import."""
        with contextlib.suppress(OSError):  # reported at the next request
            self._channel.send(message)

    def watch_by(self, theirs: socket.socket, timeout: float) -> bool:
        """Have the service watch processes from now on; return False if it has died.

        Args:
            theirs: its end of the channel for orders and reports.
            timeout: seconds; a wait whose own timeout is shorter is no deadlock.
        """
        try:
            self._channel.send(BeginWatch(timeout), (theirs.fileno(),))
        except OSError:
            return False
        return True

    def make(self, serve: Serve, descriptors: Sequence[int]) -> int:
        """Have the service make a process; return its pid.

        Raises:
            NotServedError: it cannot make one.
        """
        if self._problem is not None:
            raise NotServedError(self._problem)
        # A timeout's exception may be raised anywhere below and leave an answer unread, so the
        # service counts as broken until the answer is complete.
        self._problem = "the service was interrupted"
        try:
            self._wait_until_ready()
            with _subreaper():
                self._channel.send(serve, descriptors)
                answer = self._receive()
            assert isinstance(answer, Served), answer
        except (OSError, ChannelError, NotServedError) as error:
            self._problem = str(error)
            raise NotServedError(self._problem) from None
        self._problem = None
        return answer.pid

    def _wait_until_ready(self) -> None:
        if not self._ready:
            answer = self._receive()
            assert isinstance(answer, ServiceReady), answer
            if answer.problem is not None:
                raise NotServedError(answer.problem)
            self._ready = True

    def _receive(self) -> object:
        received = self._channel.receive()
        if received is None:
            said = os.pread(self._log, 1 << 16, 0).decode(errors="replace").strip()
            raise NotServedError("the service has died" + (f":\n{said}" if said else ""))
        return received[0]


def _read_at_import(environment: dict[str, str]) -> dict[str, str]:
    return {name: v for name, v in environment.items() if _READ_AT_IMPORT.match(name)}


@contextlib.contextmanager
def _subreaper() -> Iterator[None]:
    """In the block, this process becomes the parent of orphans: of the service's forks."""
    before = processes.adopts_orphans()
    processes.adopt_orphans()
    try:
        yield
    finally:
        processes.adopt_orphans(before)
