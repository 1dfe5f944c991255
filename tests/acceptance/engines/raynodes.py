"""Ray's processes on the machines of a cluster."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.acceptance.machines.cluster import ADDRESSES, Cluster

_RAY = Path(sys.executable).with_name("ray")
_WITH_US = ("setpriv", "--pdeathsig", "TERM")
"""A run of these tests that is killed ends Ray's processes, too."""
_PORT = 6399
_UP_LIMIT = 120


@contextlib.contextmanager
def ray_up(cluster: Cluster, before_1: str = "") -> Iterator[dict[str, str]]:
    """Have a Ray cluster of both machines for a block; the variables of its users.

    What node 1 does first is as of :meth:`Cluster.on`.
    The cluster of machines ends Ray's processes, by the mark that they inherit.
    """
    # Ray's sockets lie in there, and their paths may be short only.
    with (
        tempfile.TemporaryDirectory(prefix="ddpr-", ignore_cleanup_errors=True) as folder,
        contextlib.ExitStack() as end,
    ):
        end.callback(cluster.kill)
        head = ["--head", f"--port={_PORT}", "--include-dashboard=false", f"--temp-dir={folder}"]
        address = f"{ADDRESSES[0]}:{_PORT}"
        variables = {"RAY_ADDRESS": address, "RAY_TMPDIR": folder}
        _start_node(cluster, end, 0, "", *head)
        _wait_for_nodes(cluster, variables, 1)
        _start_node(cluster, end, 1, before_1, f"--address={address}")
        _wait_for_nodes(cluster, variables, 2)
        yield variables


def _start_node(
    cluster: Cluster, end: contextlib.ExitStack, node: int, before: str, *arguments: str
) -> None:
    own = [f"--node-ip-address={ADDRESSES[node]}", "--num-cpus=2", "--disable-usage-stats"]
    memory = ["--object-store-memory=100000000"]
    with (cluster.folder / f"ray-{node}.txt").open("ab") as log:
        process = subprocess.Popen(
            [
                *cluster.on(node, before),
                *_WITH_US,
                str(_RAY),
                "start",
                "--block",
                *own,
                *memory,
                *arguments,
            ],
            env={**os.environ, **cluster.environment(node)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    end.callback(process.wait, _UP_LIMIT)
    end.callback(cluster.kill)


_COUNT = """
import sys, ray
ray.init(address="auto", configure_logging=False, log_to_driver=False)
sys.exit(sum(node["Alive"] for node in ray.nodes()) != int(sys.argv[1]))
"""


def _wait_for_nodes(cluster: Cluster, variables: dict[str, str], count: int) -> None:
    deadline = time.monotonic() + _UP_LIMIT
    while True:
        asked = subprocess.run(
            [*cluster.on(0), sys.executable, "-c", _COUNT, str(count)],
            env={**os.environ, **cluster.environment(0), **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_UP_LIMIT,
            check=False,
        )
        if asked.returncode == 0:
            return
        said = asked.stderr.decode() + (cluster.folder / "ray-0.txt").read_text()
        assert time.monotonic() < deadline, said
        time.sleep(0.2)
