"""Pods of Kubernetes' PyTorchJob, as its operator starts them: a stand-in, no Kubernetes.

Each node has a name in place of an address, which leads nowhere at first, and the variables that
the operator sets: those of torchrun's options as well. The job is that of docs/ci.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.acceptance.extensions.machines.cluster import ADDRESSES, Cluster
from tests.acceptance.suite import Running, Suite
from tests.warm import interpreter

MANIFEST = Path(__file__).parents[4] / "docs" / "ci" / "pytorchjob.yml"
_PORT = "23456"
"""The operator's, where the job names none."""


@dataclass(frozen=True)
class Pod:
    """Starts the command of a job's container, on a machine with a table of names of its own."""

    cluster: Cluster
    node: int
    hosts: Path

    def __call__(
        self, arguments: Sequence[str], *, cwd: Path, env: Mapping[str, str], **streams: int
    ) -> interpreter.Process | subprocess.Popen[bytes]:
        mount = f"mount --bind {self.hosts} /etc/hosts && "
        return interpreter.start(
            arguments,
            cwd=cwd,
            env={**env, **self.cluster.environment(self.node)},
            machine=self.cluster.machine(self.node, mount),
            **streams,
        )


def job() -> dict[str, Any]:
    """The job of the page."""
    read: dict[str, Any] = yaml.safe_load(MANIFEST.read_text())
    return read


def variables(node: int) -> dict[str, str]:
    """What the operator sets in the container of a node, and what the job asks for."""
    made = job()
    replicas = made["spec"]["pytorchReplicaSpecs"]
    size = str(sum(replica["replicas"] for replica in replicas.values()))
    master = f"{made['metadata']['name']}-master-0"
    (container,) = replicas["Worker" if node else "Master"]["template"]["spec"]["containers"]
    secrets = {entry["name"]: "of the tests" for entry in container["env"]}
    return {
        "PYTHONUNBUFFERED": "1",
        "MASTER_ADDR": master,
        "MASTER_PORT": _PORT,
        "WORLD_SIZE": size,
        "RANK": str(node),
        "PET_MASTER_ADDR": master,
        "PET_MASTER_PORT": _PORT,
        "PET_NNODES": size,
        "PET_NPROC_PER_NODE": made["spec"]["nprocPerNode"],
        "PET_NODE_RANK": str(node),
        **secrets,
    }


SUITE = """
    import os

    import pytest
    import torch
    import torch.distributed as dist


    def launcher_s():
        return [name for name in os.environ if name.startswith("PET_") or name == "MASTER_ADDR"]


    def test_plain():
        assert launcher_s() == []


    @pytest.mark.ddp(world_size=4)
    def test_sum(ddp):
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == 4
        assert ddp.gather(os.environ["NODE_RANK"]) == ["0", "0", "1", "1"]
        assert launcher_s() == ["MASTER_ADDR"]
"""


def start(cluster: Cluster, suite: Suite, node: int) -> tuple[Running, Path]:
    """Start a pod whose name nobody knows yet; the table of names of its machine."""
    hosts = cluster.folder / f"hosts-{node}"
    hosts.write_text("127.0.0.1 localhost\n")
    replicas = job()["spec"]["pytorchReplicaSpecs"]
    (container,) = replicas["Worker" if node else "Master"]["template"]["spec"]["containers"]
    assert container["command"][:3] == ["python", "-m", "pytest"]
    arguments = container["command"][3:]
    pod = Pod(cluster, node, hosts)
    number = 10 * len(list(suite.directory.parent.iterdir())) + node
    return Running(suite.directory, number, arguments, variables(node), pod), hosts


def make_known(hosts: Path) -> None:
    with hosts.open("a") as table:
        table.write(f"{ADDRESSES[0]} {job()['metadata']['name']}-master-0\n")


@pytest.mark.parametrize("first", [0, 1])
def test_pods_that_start_in_any_order_find_each_other(
    cluster: Cluster, suite: Suite, first: int
) -> None:
    """The names come late, too; and the one that started first sees the other one's later."""
    suite.write("test_a.py", SUITE)
    pods = {first: start(cluster, suite, first)}
    time.sleep(6)
    pods[1 - first] = start(cluster, suite, 1 - first)
    time.sleep(6)
    assert all(running.process.poll() is None for running, _ in pods.values())
    make_known(pods[1 - first][1])
    time.sleep(1)
    make_known(pods[first][1])
    alpha, beta = pods[0][0].finish(180), pods[1][0].finish(60)
    alpha.assert_outcomes(passed=2)
    assert (alpha.returncode, beta.returncode) == (0, 0), beta.tail()
    assert cluster.survivors_after(3) == []


def test_pytest_that_has_nothing_to_do_does_not_wait_for_names(
    cluster: Cluster, suite: Suite
) -> None:
    suite.write("test_a.py", "def test_plain(): pass")
    running, _ = start(cluster, suite, 0)
    finished = running.finish(90)
    finished.assert_outcomes(passed=1)
    # The name is never known: a wait for it would have ended in an error, after two minutes.
    assert finished.returncode == 0, finished.tail()
    assert "MASTER_ADDR" not in finished.output
    assert cluster.survivors_after(3) == []
