"""Where ranks meet whose rank 0 is on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

from pytest_ddp.extensions.machines.agent.localrank import LocalRank
from pytest_ddp.protocol.host_messages import StartRank
from pytest_ddp.protocol.messages import RunTest
from pytest_ddp.system.stdlib import socket

_BACKLOG = 4096
"""Of the store by which the ranks of all machines meet in one moment."""


class Ports:
    """Sockets that listen until they are passed to a rank 0."""

    def __init__(self, address: str) -> None:
        """Listen at this address only: others of the machine may be reachable from elsewhere."""
        self._address = address
        self._listening: dict[int, socket.socket] = {}

    def open(self) -> int:
        """The number of a new one."""
        listening = socket.create_server((self._address, 0), backlog=_BACKLOG)
        number: int = listening.getsockname()[1]
        self._listening[number] = listening
        return number

    def of_birth(self, order: StartRank) -> AbstractContextManager[tuple[int, ...]]:
        """The descriptor by which a rank 0 serves from its start on; empty for other ranks.

        The user's code may meet while it is imported, as under torchrun.
        """
        return self._given(order.environment, order.world.keeps_group and order.rank == 0)

    def of_test(self, rank: LocalRank, order: RunTest) -> AbstractContextManager[tuple[int, ...]]:
        """That of a rank 0 which an earlier order has not given it."""
        rank.environment |= order.environment
        return self._given(rank.environment, rank.environment["RANK"] == "0")

    @contextmanager
    def _given(self, environment: Mapping[str, str], serves: bool) -> Iterator[tuple[int, ...]]:
        number = int(environment["MASTER_PORT"])
        listening = self._listening.pop(number, None) if serves else None
        with listening or nullcontext():
            yield () if listening is None else (listening.fileno(),)
