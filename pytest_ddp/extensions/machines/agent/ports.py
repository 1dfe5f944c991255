"""Listening sockets for the rendezvous of ranks whose rank 0 is on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

from pytest_ddp.extensions.machines.agent.localrank import LocalRank
from pytest_ddp.protocol.host_messages import StartRank
from pytest_ddp.protocol.messages import RunTest
from pytest_ddp.system.stdlib import socket

_BACKLOG = 4096
"""Backlog of the store, to which the ranks of all machines connect at the same time."""


class Ports:
    """Sockets that listen until they are passed to a rank 0."""

    def __init__(self, address: str) -> None:
        """Listen at this address only: the machine's other addresses may be public."""
        self._address = address
        self._listening: dict[int, socket.socket] = {}

    def open(self) -> int:
        """Open a socket; return its port."""
        listening = socket.create_server((self._address, 0), backlog=_BACKLOG)
        number: int = listening.getsockname()[1]
        self._listening[number] = listening
        return number

    def of_start(self, start: StartRank) -> AbstractContextManager[tuple[int, ...]]:
        """The descriptor by which a rank 0 serves from its start on; empty for other ranks.

        The user's code may create its process group at import, as under torchrun.
        """
        return self._given(start.environment, start.world.keeps_group and start.rank == 0)

    def of_test(
        self, rank: LocalRank, run_test: RunTest
    ) -> AbstractContextManager[tuple[int, ...]]:
        """The descriptor for a rank 0 that has not got it with an earlier order; else empty."""
        rank.environment |= run_test.environment
        return self._given(rank.environment, rank.environment["RANK"] == "0")

    @contextmanager
    def _given(self, environment: Mapping[str, str], serves: bool) -> Iterator[tuple[int, ...]]:
        number = int(environment["MASTER_PORT"])
        listening = self._listening.pop(number, None) if serves else None
        with listening or nullcontext():
            yield () if listening is None else (listening.fileno(),)
