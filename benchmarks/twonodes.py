"""Run the same command on two nodes, which are both this machine: ``python twonodes.py -m pytest``.

A launcher without a store, since that of torchrun would be half of a session's start.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys

NODES = 2


def main(arguments: list[str]) -> int:
    """Wait for both; the exit code of the first that has failed."""
    place = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        "WORLD_SIZE": str(NODES),
        "PYTEST_DDP_SECRET": secrets.token_hex(32),
    }
    nodes = [
        subprocess.Popen(
            [sys.executable, *arguments], env={**os.environ, **place, "RANK": str(node)}
        )
        for node in range(NODES)
    ]
    return next(filter(None, [node.wait() for node in nodes]), 0)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        number: int = listening.getsockname()[1]
        return number


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
