"""The GPUs that an agent has of its engine: reported by machines, and never touched."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.acceptance.devices.standins import CONFTEST, variables_for
from tests.acceptance.extensions.engines.raynodes import ray_up
from tests.acceptance.extensions.engines.slurmcommands import slurm_on
from tests.acceptance.extensions.machines import switch as switches
from tests.acceptance.extensions.machines.cluster import Cluster, problem
from tests.acceptance.extensions.machines.switch import Switch
from tests.acceptance.suite import Suite, flat
from tests.warm.python import standing_in

SOURCE = """
    import os
    import socket

    import pytest


    @pytest.mark.ddp(world_size="gpus", device="cuda", backend="gloo")
    def test_all(ddp):
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        print(*ddp.gather((socket.gethostname(), str(ddp.device), visible)))
        assert 0
"""
ALPHA = ["('alpha', 'cuda:0', None)", "('alpha', 'cuda:1', None)", "('alpha', 'cuda:2', None)"]


def places(finished: object) -> str:
    result = finished["test_all"]  # type: ignore[index]
    (call,) = (report for report in result.reports if report.when == "call")
    return flat(" ".join(text for _, text in call.sections))


@pytest.fixture
def three() -> Iterator[Cluster]:
    """Three machines: Ray leaves masks of GPUs to others on the last one."""
    pytest.importorskip("ray")
    if why := problem() or switches.problem():
        pytest.skip(why)
    with Cluster.up(3, Switch()) as cluster:
        yield cluster


NOSET = {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}
HOLD = """
import sys
import ray
from ray.util.placement_group import placement_group

ray.init(address="auto", configure_logging=False, log_to_driver=False)
others = [node for node in ray.nodes() if node["NodeManagerAddress"] != "10.77.0.1"]
there = [{"ray.io/node-id": node["NodeID"]} for node in others]
bundles = [{"GPU": 1.0}] * len(others)
groups = []
while sys.stdin.readline():
    groups.append(placement_group(bundles, "STRICT_SPREAD", bundle_label_selector=there))
    assert groups[-1].wait(60)
    print("held", flush=True)
"""


@contextlib.contextmanager
def somebody(cluster: Cluster, variables: dict[str, str]) -> Iterator[Callable[[], None]]:
    """Have somebody else take one more GPU of beta's and gamma's by Ray, at each call."""
    command = [*cluster.on(0), sys.executable, "-c", HOLD]
    env = {**os.environ, **cluster.environment(0), **variables}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=env, **pipes) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def takes() -> None:
            process.stdin.write("one\n")
            process.stdin.flush()
            assert process.stdout.readline() == "held\n"

        yield takes
        process.stdin.close()
        process.wait(60)


def test_ray_gives_the_gpus_of_a_node_that_nobody_has(
    three: Cluster, suite: Suite, tmp_path: Path
) -> None:
    """Ray was started with two on each machine, and one of the others' is taken, then both."""
    suite.write("conftest.py", CONFTEST)
    suite.write("test_a.py", SOURCE)
    env = variables_for(tmp_path / "gpus", {"alpha": 3, "beta": 4, "gamma": 4})
    with (
        ray_up(three, gpus=2, env=env, of={2: NOSET}) as variables,
        standing_in() as python,
        somebody(three, variables) as takes,
    ):
        for left in ("0,1", "1", ""):
            arguments = "--ddp-machines=ray", f"--ddp-machines-python={python}"
            finished = three.run_alone(suite, *arguments, env=variables)
            shown = places(finished)
            visible = [f"'cuda:{n}', '{left}')" for n in range(len(left.split(",")) * bool(left))]
            there = [f"('{name}', {one}" for name in ("beta", "gamma") for one in visible]
            assert " ".join([*ALPHA, *there]) in shown, finished.tail()
            assert [shown.count(name) for name in ("beta", "gamma")] == [len(visible)] * 2
            if left:
                takes()


def test_slurm_gives_the_gpus_that_the_job_has_on_a_node(
    cluster: Cluster, suite: Suite, tmp_path: Path
) -> None:
    """The job has two of alpha's three, and one of beta's four; each node sees what SLURM sets."""
    suite.write("conftest.py", CONFTEST)
    suite.write("test_a.py", SOURCE)
    env = variables_for(tmp_path / "gpus", {"alpha": 3, "beta": 4})
    paths = {"PATH": f"{tmp_path}{os.pathsep}{env['PATH']}"}
    # What sbatch leaves of --gpus=3 --gpus-per-task=1, and sets for the batch script.
    job = {"SLURM_GPUS": "3", "SLURM_GPUS_PER_TASK": "1", "CUDA_VISIBLE_DEVICES": "0,1"}
    with slurm_on(cluster, tmp_path, "CUDA_VISIBLE_DEVICES=2") as slurm:
        variables = {**env, **slurm, **paths, **job}
        finished = cluster.run_alone(suite, "--ddp-machines=slurm", env=variables)
    alpha = [f"('alpha', 'cuda:{n}', '0,1')" for n in range(2)]
    assert " ".join([*alpha, "('beta', 'cuda:0', '2')"]) in places(finished), finished.tail()
