"""The env:// rendezvous, for code under test that calls ``init_process_group`` itself.

torchrun's agent serves a store that ranks join as clients. Here rank 0 serves one, on the socket
that the controller has opened on loopback, and only at the first request: a store costs a
millisecond, and most tests never need it. A request is a call of the rendezvous in rank 0, or a
connection to the socket, for which the thread of :class:`~pytest_ddp.rank.link.Link` looks while it
waits for messages.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from pytest_ddp.rank.groups import torch_state
from pytest_ddp.system.stdlib import os, socket, threading

_HANDLERS: dict[str, Any] = getattr(
    importlib.import_module("torch.distributed.rendezvous"), "_rendezvous_handlers", {}
)

_AGENT = "TORCHELASTIC_USE_AGENT_STORE"


class EnvRendezvous:
    """Serves, or joins, the env:// store of one test."""

    def __init__(self) -> None:
        self.listening: int | None = None
        """The controller's socket, as long as nothing is served there."""
        self._serving = threading.Lock()
        self._server: TCPStore | None = None
        self._kept: list[TCPStore] = []
        """Servers of earlier tests, kept while a group or a store of the user's may need them."""
        self._attempts = itertools.count()
        self._was_used = False
        self._address = ""
        self._port: str | None = None
        """The port of the controller's socket, from ``MASTER_PORT``."""
        self._original: Any = _HANDLERS.get("env")
        if self._original is not None:
            _HANDLERS["env"] = self._rendezvous

    def begin(self, listening: list[int], *, serve_now: bool, keeps: bool = False) -> None:
        """Start over for a new test.

        Args:
            listening: the controller's socket on the serving rank; empty if it has it already.
            serve_now: serve at once instead of at the first request.
            keeps: True if a group exists that was built with the store of an earlier test.
        """
        # Without a new socket, nobody has made a store at this one: something else connected to it
        # after this rank had reported.
        if self._server is not None and listening:
            self._kept.append(self._server)
            self._server = None
        if not keeps:
            ports = {name.rpartition(":")[2] for _, name in torch_state.held().values()}
            self._kept = [server for server in self._kept if str(server.port) in ports]
        self._was_used = False
        self._attempts = itertools.count()
        with self._serving:  # port and socket change at once, as the link's thread may serve
            self._address = os.environ.get("MASTER_ADDR", "")
            self._port = os.environ.get("MASTER_PORT")
            old = self.listening if listening else None
            if listening:
                self.listening = listening[0]
        if old is not None:
            socket.close(old)
        if serve_now or self._original is None:
            self.serve()

    def used_rendezvous(self) -> bool:
        """Whether this rank has served or used the env:// store since the test began.

        A rank may use it after rank 0 has reported, and have it served only then.
        """
        return self._was_used or self._server is not None or self._port in torch_state.ports

    def store(self) -> Store:
        """This rank's connection to the test's store, for the plugin's own group.

        Raises:
            RuntimeError: the store cannot be reached.
        """
        if self._server is not None:
            return self._server
        return TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)

    def serve(self) -> None:
        """Serve the store of this test, if this rank is the one to do so and does not do it yet.

        Raises:
            RuntimeError: the test has closed the socket.
        """
        with self._serving:
            listening, self.listening = self.listening, None
            if listening is not None:
                # With another file torch does not serve, and waits for an answer of its own port.
                if not _listens(listening, self._port):
                    raise RuntimeError("the socket of MASTER_PORT has been closed")
                self._server = TCPStore(
                    self._address,
                    int(self._port or 0),
                    is_master=True,
                    wait_for_workers=False,
                    master_listen_fd=listening,
                )

    def _rendezvous(
        self, url: str, timeout: timedelta = timedelta(minutes=5), **options: Any
    ) -> Iterator[tuple[Store, int, int]]:
        is_ours = os.environ.get("MASTER_PORT") == self._port
        if is_ours:
            self._was_used = True
            self.serve()
        # torch's agent store has no prefix per attempt: a second init would read the
        # first one's addresses and hang (torch 2.13).
        attempt = next(self._attempts)
        found = self._original(url, timeout=timeout, **options)
        with contextlib.nullcontext() if is_ours else _without_agent():
            first = next(found)
        for store, rank, world_size in itertools.chain((first,), found):
            yield PrefixStore(f"attempt_{attempt}", store), rank, world_size


def _listens(descriptor: int, port: str | None) -> bool:
    """True if a descriptor is, as ever, a socket that listens on this port."""
    try:
        with socket.socket(fileno=os.dup(descriptor)) as found:
            is_listening = found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            return bool(is_listening) and str(found.getsockname()[1]) == port
    except OSError:
        return False


@contextlib.contextmanager
def _without_agent() -> Iterator[None]:
    """Hide torchrun's agent in a block: at a port that the test has chosen, rank 0 serves."""
    agent = os.environ.pop(_AGENT, None)
    try:
        yield
    finally:
        if agent is not None:
            os.environ[_AGENT] = agent
