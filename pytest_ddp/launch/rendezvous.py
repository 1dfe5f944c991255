"""What ranks need to find each other: environment and loopback socket.

Nothing here opens a port that another machine could reach, and no port number is
chosen or probed: the kernel gives one, and the open socket itself is handed on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from pytest_ddp.system.own import socket
from pytest_ddp.wire.hosting import World

LOOPBACK = "127.0.0.1"

HOST_ENVIRONMENT = {
    # A fork after one matmul with more than one OpenMP thread hangs in the child.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # Counting GPUs must not initialise CUDA in the process that forks.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    # No reachable port and no look-up of the host's own name.
    "GLOO_SOCKET_IFNAME": "lo",
}
"""Set for the host before torch is imported, and inherited by every rank."""

NOT_FOR_HOST = frozenset({"COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG"})
"""Kept from the host, which coverage.py would measure from its start; ranks do so themselves."""


def listen(backlog: int) -> socket.socket:
    """A listening loopback socket on a port of the kernel's choice, for a ``TCPStore``."""
    return socket.create_server((LOOPBACK, 0), backlog=backlog)


@dataclass(frozen=True)
class Port:
    """Where rank 0 of a test listens, which others have been told."""

    address: str
    number: int
    listening: socket.socket | None = None
    """The socket behind it, to be handed to rank 0; None if it is open on another machine."""

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What travels to rank 0 with its order."""
        return () if self.listening is None else (self.listening.fileno(),)

    def __enter__(self) -> Port:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of our copy of the socket."""
        if self.listening is not None:
            self.listening.close()


def open_port(world: World) -> Port:
    """One of this machine, for a world whose ranks are all here."""
    listening = listen(world.world_size)
    return Port(LOOPBACK, listening.getsockname()[1], listening)


class Rendezvous:
    """Where the ranks of one pool meet: one run for all their lives, a new port after each use.

    Under torchrun the port stays the same as well; but code under test that talks to the
    store by itself would find there what the last test left.
    """

    def __init__(self, world: World, run_id: str, new_port: Callable[[World], Port]) -> None:
        self._world = world
        self._run_id = run_id
        self._new_port = new_port
        self._port: Port | None = None
        self._is_taken = False
        self._places = node_environments(world.nodes)
        self._environments: dict[int, dict[str, str]] = {}
        """Of ranks that meet at this port."""

    def environment(self, rank: int) -> dict[str, str]:
        """The torchrun variables of a rank for the next test, or for its birth before it."""
        if self._port is None:
            self._port = self._new_port(self._world)
            self._is_taken = False
            self._environments.clear()
        if rank not in self._environments:
            self._environments[rank] = self._made(rank, self._port)
        return self._environments[rank]

    def _made(self, rank: int, port: Port) -> dict[str, str]:
        place = rank_environment(rank, self._world.world_size, port.number, self._run_id)
        if not self._world.nodes:
            return place
        return place | self._places[rank] | {"MASTER_ADDR": port.address}

    def take(self) -> Port | None:
        """The port of the next test, which has begun; None if rank 0 listens there already."""
        assert self._port is not None, "nobody was told of a port"
        taken = None if self._is_taken else self._port
        self._is_taken = True
        return taken

    def renew(self) -> None:
        """Have the next test meet at another port, if this one was taken."""
        if self._is_taken:
            self._port = None

    def close(self) -> None:
        """Give up the port that no test came for."""
        if self._port is not None:
            self._port.close()


def node_environments(nodes: tuple[int, ...]) -> list[dict[str, str]]:
    """What is otherwise for each rank if not all ranks are on one machine; ``nodes`` has theirs.

    torchrun sets no ``NODE_RANK``; Lightning and launchers of other makes do, or read it.
    """
    groups = {node: str(group) for group, node in enumerate(sorted({*nodes}))}
    mates = Counter(nodes)
    seen: Counter[int] = Counter()
    places = []
    for node in nodes:
        places.append(
            {
                "LOCAL_RANK": str(seen[node]),
                "LOCAL_WORLD_SIZE": str(mates[node]),
                "GROUP_RANK": groups[node],
                "NODE_RANK": groups[node],
                "GROUP_WORLD_SIZE": str(len(groups)),
            }
        )
        seen[node] += 1
    return places


def rank_environment(rank: int, world_size: int, port: int, run_id: str) -> dict[str, str]:
    """The variables that ``torchrun --standalone`` would set for this rank.

    ``TORCHELASTIC_USE_AGENT_STORE`` makes a bare ``init_process_group()`` a client on
    every rank, so that no rank tries to listen on ``MASTER_PORT`` itself.
    """
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "ROLE_RANK": str(rank),
        "GROUP_RANK": "0",
        "ROLE_NAME": "default",
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "ROLE_WORLD_SIZE": str(world_size),
        "GROUP_WORLD_SIZE": "1",
        "MASTER_ADDR": LOOPBACK,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
