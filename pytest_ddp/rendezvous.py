"""What ranks need to find each other: environment, private directory, loopback socket.

Nothing here opens a port that another machine could reach, and no port number is
chosen or probed: the kernel gives one, and the open socket itself is handed on.
"""

from __future__ import annotations

import socket
import tempfile
from pathlib import Path

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


def private_directory() -> Path:
    """A new directory (0700) for stores, fault files and the host's log."""
    return Path(tempfile.mkdtemp(prefix="pytest-ddp-"))


def listen(backlog: int) -> socket.socket:
    """A listening loopback socket on a port of the kernel's choice, for a ``TCPStore``."""
    return socket.create_server((LOOPBACK, 0), backlog=backlog)


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
