"""What ranks need to find each other: environment and loopback socket.

Nothing here opens a port that another machine could reach, and no port number is
chosen or probed: the kernel gives one, and the open socket itself is handed on.
"""

from __future__ import annotations

from pytest_ddp.system.own import socket

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


class Rendezvous:
    """Where the ranks of one pool meet: one run for all their lives, a new port after each use.

    Under torchrun the port stays the same as well; but code under test that talks to the
    store by itself would find there what the last test left.
    """

    def __init__(self, world_size: int, run_id: str) -> None:
        self._world_size = world_size
        self._run_id = run_id
        self._port: int | None = None
        self._listening: socket.socket | None = None
        """The socket behind the port, until rank 0 has it."""

    def environment(self, rank: int) -> dict[str, str]:
        """The torchrun variables of a rank for the next test, or for its birth before it."""
        if self._port is None:
            self._listening = listen(self._world_size)
            self._port = self._listening.getsockname()[1]
        return rank_environment(rank, self._world_size, self._port, self._run_id)

    def take(self) -> socket.socket | None:
        """The socket behind the port of the next test, which has begun; None if rank 0 has it."""
        assert self._port is not None, "nobody was told of a port"
        taken, self._listening = self._listening, None
        return taken

    def renew(self) -> None:
        """Have the next test meet at another port, if this one was taken."""
        if self._listening is None:
            self._port = None

    def close(self) -> None:
        """Give up the port that no test came for."""
        if self._listening is not None:
            self._listening.close()


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
