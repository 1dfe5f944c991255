"""Ray's processes on the machines of a cluster."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.acceptance.extensions.machines.cluster import ADDRESSES, Cluster

_RAY = Path(sys.executable).with_name("ray")
_WITH_US = ("setpriv", "--pdeathsig", "TERM")
"""A run of these tests that is killed ends Ray's processes, too."""
_PORT = 6399
_UP_LIMIT = 120
_QUIET = {
    # Workers that nobody has asked for, on each node for each session: a second each.
    **dict.fromkeys(("RAY_enable_worker_prestart", "RAY_prestart_worker_first_driver"), "0"),
    "RAY_enable_metrics_collection": "0",
    "RAY_memory_monitor_refresh_ms": "0",
}
"""What Ray's processes do beside their work costs more than that."""


@contextlib.contextmanager
def ray_up(
    cluster: Cluster,
    *,
    gpus: int = 0,
    env: Mapping[str, str] | None = None,
    of: Mapping[int, Mapping[str, str]] | None = None,
    before_1: str = "",
) -> Iterator[dict[str, str]]:
    """Have a Ray cluster of all machines for a block; the variables of its users.

    The cluster of machines ends Ray's processes.

    Args:
        cluster: the machines.
        gpus: how many each is said to have.
        env: variables of Ray's processes and of its users.
        of: variables that Ray's processes have on single nodes alone.
        before_1: what node 1 does first, as of :meth:`Cluster.on`.
    """
    # Ray's sockets lie in there, and their paths may be short only.
    with (
        tempfile.TemporaryDirectory(prefix="ddpr-", ignore_cleanup_errors=True) as folder,
        contextlib.ExitStack() as end,
    ):
        end.callback(cluster.kill)
        head = ["--head", f"--port={_PORT}", "--include-dashboard=false", f"--temp-dir={folder}"]
        address = f"{ADDRESSES[0]}:{_PORT}"
        own = dict(env or {})
        variables = own | {"RAY_ADDRESS": address, "RAY_TMPDIR": folder}
        counted = _counted(cluster, end, address, cluster.size)
        for node in range(cluster.size):
            place = [f"--address={address}"] if node else head
            before = before_1 if node == 1 else ""
            variables_of = {**own, **(of or {}).get(node, {})}
            arguments = [f"--num-gpus={gpus}", *place]
            _start_node(cluster, end, node, *arguments, env=variables_of, before=before)
            # Not together: their sockets lie in one folder, and each takes the next free name.
            _wait_for_nodes(cluster, counted, node + 1)
        yield variables


_HEAD = f"{'f' * 51}00000"
"""The id of the first node, by which Ray's provider of nodes that are processes knows it."""
_GROWING_PORT = 6379
"""The port of the first node; the provider knows no other."""


@contextlib.contextmanager
def ray_that_grows(cluster: Cluster, most: int) -> Iterator[dict[str, str]]:
    """Have a Ray cluster of one node, and an autoscaler that brings ``most`` others.

    All nodes are processes of one machine, which Ray distinguishes by their ids.
    """
    with (
        tempfile.TemporaryDirectory(prefix="ddpr-", ignore_cleanup_errors=True) as folder,
        contextlib.ExitStack() as end,
    ):
        end.callback(cluster.kill)
        config = Path(folder, "autoscaler.json")
        config.write_text(json.dumps(_growing(most)))
        address = f"{ADDRESSES[0]}:{_GROWING_PORT}"
        variables = {"RAY_ADDRESS": address, "RAY_TMPDIR": folder}
        head = ["--head", f"--port={_GROWING_PORT}", "--include-dashboard=false"]
        place = [f"--temp-dir={folder}", f"--autoscaling-config={config}"]
        fake = {"RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1"}
        counted = _counted(cluster, end, address, 1)
        _start_node(cluster, end, 0, *head, *place, env=fake)
        _wait_for_nodes(cluster, counted, 1)
        yield variables


def _growing(most: int) -> dict[str, Any]:
    lists = ("initialization", "setup", "head_setup", "worker_setup", "head_start_ray")
    files = {"file_mounts": {}, "cluster_synced_files": [], "file_mounts_sync_continuously": False}
    worker = {"resources": {"CPU": 2, "object_store_memory": 100_000_000}, "node_config": {}}
    head = {"resources": {"CPU": 2}, "node_config": {}, "max_workers": 0}
    return {
        "cluster_name": "growing",
        "max_workers": most,
        "upscaling_speed": 1.0,
        "idle_timeout_minutes": 30,
        "provider": {"type": "fake_multinode", "head_node_id": _HEAD},
        "auth": {},
        "docker": {},
        **{f"{name}_commands": [] for name in (*lists, "worker_start_ray")},
        **files,
        "rsync_exclude": [],
        "rsync_filter": [],
        "head_node_type": "ray.head.default",
        "available_node_types": {
            "worker": {**worker, "min_workers": 0, "max_workers": most},
            "ray.head.default": head,
        },
    }


def _start_node(
    cluster: Cluster,
    end: contextlib.ExitStack,
    node: int,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    before: str = "",
) -> None:
    own = [f"--node-ip-address={ADDRESSES[node]}", "--num-cpus=2", "--disable-usage-stats"]
    memory = ["--object-store-memory=100000000", "--include-log-monitor=false"]
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
            env={**os.environ, **_QUIET, **cluster.environment(node), **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    end.callback(process.wait, _UP_LIMIT)
    end.callback(cluster.kill)


_COUNT = """
import sys, time
from ray._raylet import GcsClient

address, most = sys.argv[1:]
known = 0
while known < int(most):
    try:
        nodes = len(GcsClient(address=address).get_all_node_info())
    except Exception as error:
        print(error)
        nodes = 0
    if nodes > known:
        known = nodes
        print(f"nodes: {nodes}", flush=True)
    time.sleep(0.2)
"""


def _counted(cluster: Cluster, end: contextlib.ExitStack, address: str, most: int) -> Path:
    """The file to which a process writes the number of nodes; it is no driver, for which Ray would
    start workers."""
    file = cluster.folder / "ray-count.txt"
    with file.open("wb") as log:
        process = subprocess.Popen(
            [*cluster.on(0), *_WITH_US, sys.executable, "-c", _COUNT, address, str(most)],
            env={**os.environ, **cluster.environment(0)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    end.callback(process.wait, _UP_LIMIT)
    end.callback(cluster.kill)
    return file


def _wait_for_nodes(cluster: Cluster, counted: Path, count: int) -> None:
    deadline = time.monotonic() + _UP_LIMIT
    while f"nodes: {count}\n" not in counted.read_text():
        said = sorted(cluster.folder.glob("ray-*.txt"))
        assert time.monotonic() < deadline, "\n".join(file.read_text() for file in said)
        time.sleep(0.05)
