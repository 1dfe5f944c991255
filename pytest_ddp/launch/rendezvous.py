"""The rendezvous of ranks: environment variables and a loopback socket.

No port that another machine could reach is opened here. No port number is chosen or probed: the
kernel gives one, and the open socket itself is sent to the rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from pytest_ddp.protocol.host_messages import World
from pytest_ddp.system.stdlib import socket

LOOPBACK = "127.0.0.1"

HOST_ENVIRONMENT = {
    # A fork after one matmul with more than one OpenMP thread hangs in the child.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # Counting GPUs must not initialise CUDA in the process that forks.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    # No port that other machines can reach, and no look-up of this machine's name.
    "GLOO_SOCKET_IFNAME": "lo",
}
"""Set for the host before torch is imported, and inherited by every rank."""

NOT_FOR_HOST = frozenset({"COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG"})
"""Variables that are removed for the host: with them coverage.py would measure it from its start.
Ranks start coverage on their own."""


def listen(backlog: int) -> socket.socket:
    """A listening loopback socket on a port that the kernel chooses, for a ``TCPStore``."""
    return socket.create_server((LOOPBACK, 0), backlog=backlog)


@dataclass(frozen=True)
class Port:
    """The address at which rank 0 of a test listens."""

    address: str
    number: int
    listening: socket.socket | None = None
    """The listening socket, to be sent to rank 0; None if it is open on another machine."""

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The descriptors that are sent to rank 0 with its order."""
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
        """Close this process's copy of the socket."""
        if self.listening is not None:
            self.listening.close()


def open_port(world: World) -> Port:
    """Listen on a free port of this machine, for a world whose ranks are all on it."""
    listening = listen(world.world_size)
    return Port(LOOPBACK, listening.getsockname()[1], listening)


class Rendezvous:
    """The rendezvous of one pool: one run id for its whole life, a new port after each use.

    Under torchrun the port stays the same; but here, code under test that uses the store directly
    would find there the keys of the last test.
    """

    def __init__(self, world: World, run_id: str, new_port: Callable[[World], Port]) -> None:
        self._world = world
        self._run_id = run_id
        self._new_port = new_port
        self._port: Port | None = None
        self._is_taken = False
        self._places = node_environments(world.nodes)
        self._environments: dict[int, dict[str, str]] = {}
        """The torchrun variables of ranks for the present port."""

    def environment(self, rank: int) -> dict[str, str]:
        """The torchrun variables of a rank for the next test, or for its start before that."""
        if self._port is None:
            self._port = self._new_port(self._world)
            self._is_taken = False
            self._environments.clear()
        if rank not in self._environments:
            self._environments[rank] = self._made(rank, self._port)
        return self._environments[rank]

    def _made(self, rank: int, port: Port) -> dict[str, str]:
        place = rank_environment(rank, self._world.world_size, port.number, self._run_id)
        if self._world.shares_gpus:
            place |= sharing_environment(rank, self._run_id)
        if self._world.nodes:
            return place | self._places[rank] | {"MASTER_ADDR": port.address}
        if self._world.shares_gpus:
            place["NCCL_SOCKET_IFNAME"] = "lo"
        return place

    def take(self) -> Port | None:
        """The port of the test that begins now; None if rank 0 listens there already."""
        assert self._port is not None, "take() before environment()"
        taken = None if self._is_taken else self._port
        self._is_taken = True
        return taken

    def renew(self) -> None:
        """Use another port for the next test, if this one was taken."""
        if self._is_taken:
            self._port = None

    def close(self) -> None:
        """Close the port, if no test has used it."""
        if self._port is not None:
            self._port.close()


def node_environments(nodes: tuple[int, ...]) -> list[dict[str, str]]:
    """The variables that differ for each rank if not all ranks are on one machine.

    torchrun sets no ``NODE_RANK``; Lightning and other launchers set or read it.

    Args:
        nodes: the machine of each rank.
    """
    groups = {node: str(group) for group, node in enumerate(sorted({*nodes}))}
    local_sizes = Counter(nodes)
    seen: Counter[int] = Counter()
    places = []
    for node in nodes:
        places.append(
            {
                "LOCAL_RANK": str(seen[node]),
                "LOCAL_WORLD_SIZE": str(local_sizes[node]),
                "GROUP_RANK": groups[node],
                "NODE_RANK": groups[node],
                "GROUP_WORLD_SIZE": str(len(groups)),
            }
        )
        seen[node] += 1
    return places


def sharing_environment(rank: int, run_id: str) -> dict[str, str]:
    """Variables with which NCCL takes several ranks on one GPU.

    It refuses two ranks on one GPU of one host ("Duplicate GPU detected"). With a host identifier
    of its own, each rank is a host to it, and hosts communicate by sockets. Set for gloo as well,
    since a test may make a group with NCCL itself.

    Source: NCCL's ``src/misc/utils.cc``, ``getHostHash``, and ``src/init.cc``, which compares the
    hash and the PCI address of the GPU.
    """
    return {"NCCL_HOSTID": f"{run_id}-{rank}", "NCCL_NET": "Socket"}


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
