"""Ray's processes on the machines of a cluster."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.acceptance.machines.cluster import ADDRESSES, Cluster

_RAY = Path(sys.executable).with_name("ray")
_WITH_US = ("setpriv", "--pdeathsig", "TERM")
"""A run of these tests that is killed ends Ray's processes, too."""
_PORT = 6399
_UP_LIMIT = 120


@contextlib.contextmanager
def ray_up(
    cluster: Cluster, *, gpus: int = 0, env: Mapping[str, str] | None = None, before_1: str = ""
) -> Iterator[dict[str, str]]:
    """Have a Ray cluster of both machines for a block; the variables of its users.

    The cluster of machines ends Ray's processes.

    Args:
        cluster: the machines.
        gpus: how many each is said to have.
        env: variables of Ray's processes and of its users.
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
        start = functools.partial(_start_node, cluster, end, env=own)
        start(0, f"--num-gpus={gpus}", *head)
        _wait_for_nodes(cluster, variables, 1)
        start(1, f"--num-gpus={gpus}", f"--address={address}", before=before_1)
        _wait_for_nodes(cluster, variables, 2)
        yield variables


_HEAD = f"{'f' * 51}00000"
"""By this id Ray's provider of nodes that are processes knows the first one."""
_GROWING_PORT = 6379
"""The provider knows no other."""


@contextlib.contextmanager
def ray_that_grows(cluster: Cluster, most: int) -> Iterator[dict[str, str]]:
    """Have a Ray cluster of one node, and an autoscaler that brings ``most`` others.

    All nodes are processes of one machine, which Ray tells apart by their ids.
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
        _start_node(cluster, end, 0, *head, *place, env=fake)
        _wait_for_nodes(cluster, variables, 1)
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
            env={**os.environ, **cluster.environment(node), **(env or {})},
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
