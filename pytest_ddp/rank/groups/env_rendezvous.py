"""The env:// rendezvous, for code under test that calls ``init_process_group`` itself.

torchrun's agent serves a store that ranks join as clients. Here rank 0 serves one, on the socket
that the controller has opened on loopback, and only at the first request: a store costs a
millisecond, and most tests never need it.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from pytest_ddp.system.stdlib import os, socket

_HANDLERS: dict[str, Any] = getattr(
    importlib.import_module("torch.distributed.rendezvous"), "_rendezvous_handlers", {}
)

_AGENT = "TORCHELASTIC_USE_AGENT_STORE"


class EnvRendezvous:
    """Serves, or joins, the env:// store of one test."""

    def __init__(self) -> None:
        self._socket: int | None = None
        self._server: TCPStore | None = None
        self._kept: list[TCPStore] = []
        """Servers of earlier tests, kept while a group that was built with them exists."""
        self._attempts = itertools.count()
        self._was_used = False
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
        if not keeps:
            self._kept.clear()
        elif self._server is not None:
            self._kept.append(self._server)
        self._server = None
        if listening:
            if self._socket is not None:
                socket.close(self._socket)
            self._socket = listening[0]
        self._was_used = False
        self._port = os.environ.get("MASTER_PORT")
        self._attempts = itertools.count()
        if serve_now or self._original is None:
            self._serve()

    def used_rendezvous(self) -> bool:
        """Whether this rank has served or used the env:// store since the test began."""
        return self._was_used or self._server is not None

    def store(self) -> Store:
        """This rank's connection to the test's store, for the plugin's own group.

        Raises:
            RuntimeError: the store cannot be reached.
        """
        if self._server is not None:
            return self._server
        return TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)

    def _serve(self) -> None:
        if self._socket is None:
            return
        self._server = TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=self._socket,
        )
        self._socket = None

    def _rendezvous(
        self, url: str, timeout: timedelta = timedelta(minutes=5), **options: Any
    ) -> Iterator[tuple[Store, int, int]]:
        is_ours = os.environ.get("MASTER_PORT") == self._port
        if is_ours:
            self._was_used = True
            self._serve()
        # torch's agent store has no prefix per attempt: a second init would read the
        # first one's addresses and hang (torch 2.13).
        attempt = next(self._attempts)
        found = self._original(url, timeout=timeout, **options)
        with contextlib.nullcontext() if is_ours else _without_agent():
            first = next(found)
        for store, rank, world_size in itertools.chain((first,), found):
            yield PrefixStore(f"attempt_{attempt}", store), rank, world_size


@contextlib.contextmanager
def _without_agent() -> Iterator[None]:
    """Hide torchrun's agent in a block: at a port that the test has chosen, rank 0 serves."""
    agent = os.environ.pop(_AGENT, None)
    try:
        yield
    finally:
        if agent is not None:
            os.environ[_AGENT] = agent
