"""Which GPUs an agent has of its engine: told of by machines, and never touched."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.devices.standins import CONFTEST, variables_for
from tests.acceptance.engines.raynodes import ray_up
from tests.acceptance.engines.slurmcommands import slurm_on
from tests.acceptance.machines.cluster import Cluster
from tests.acceptance.suite import Suite, flat

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


@pytest.fixture(params=["as it is", "NOSET"])
def ray_variables(
    cluster: Cluster, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[dict[str, str]]:
    pytest.importorskip("ray")
    env = variables_for(tmp_path / "gpus", {"alpha": 3, "beta": 4})
    if request.param == "NOSET":
        env |= {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}
    with ray_up(cluster, gpus=2, env=env) as variables:
        yield variables


HOLD = """
import sys, time
import ray

ray.init(address="auto", configure_logging=False, log_to_driver=False)


@ray.remote(num_cpus=0, num_gpus=int(sys.argv[1]))
class Holder:
    def where(self):
        return ray.get_runtime_context().get_node_id()


beta = next(n["NodeID"] for n in ray.nodes() if n["NodeManagerAddress"] == "10.77.0.2")
there = {"ray.io/node-id": beta}
holder = Holder.options(label_selector=there).remote()
assert ray.get(holder.where.remote()) == beta
print("held", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def held(cluster: Cluster, count: int, variables: dict[str, str]) -> Iterator[None]:
    """Have somebody else hold GPUs of beta's by Ray, for a block."""
    command = [*cluster.on(0), sys.executable, "-c", HOLD, str(count)]
    env = {**os.environ, **cluster.environment(0), **variables}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=env, **pipes) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield
        process.stdin.close()
        process.wait(60)


def test_ray_gives_the_gpus_of_a_node_that_nobody_has(
    cluster: Cluster, ray_variables: dict[str, str], suite: Suite
) -> None:
    """Ray was told of two on each machine, and somebody takes one of beta's, then both."""
    suite.write("conftest.py", CONFTEST)
    suite.write("test_a.py", SOURCE)
    finished = cluster.run_alone(suite, "--ddp-machines=ray", env=ray_variables)
    beta = ["('beta', 'cuda:0', '0,1')", "('beta', 'cuda:1', '0,1')"]
    assert " ".join([*ALPHA, *beta]) in places(finished), finished.tail()
    for taken, left in ((1, "('beta', 'cuda:0', '1')"), (2, "")):
        with held(cluster, taken, ray_variables):
            finished = cluster.run_alone(suite, "--ddp-machines=ray", env=ray_variables)
        told = places(finished)
        assert " ".join([*ALPHA, left]).strip() in told
        assert told.count("beta") == told.count(left or "beta") * bool(left)


def test_slurm_gives_the_gpus_that_the_job_has_on_a_node(
    cluster: Cluster, suite: Suite, tmp_path: Path
) -> None:
    """The job has two of alpha's three, and one of beta's four; each node sees what SLURM sets."""
    suite.write("conftest.py", CONFTEST)
    suite.write("test_a.py", SOURCE)
    env = variables_for(tmp_path / "gpus", {"alpha": 3, "beta": 4})
    slurm = slurm_on(cluster, tmp_path, "CUDA_VISIBLE_DEVICES=2")
    paths = {"PATH": f"{tmp_path}{os.pathsep}{env['PATH']}"}
    # What sbatch leaves of --gpus=3 --gpus-per-task=1, and sets for the batch script.
    job = {"SLURM_GPUS": "3", "SLURM_GPUS_PER_TASK": "1", "CUDA_VISIBLE_DEVICES": "0,1"}
    variables = {**env, **slurm, **paths, **job}
    finished = cluster.run_alone(suite, "--ddp-machines=slurm", env=variables)
    alpha = [f"('alpha', 'cuda:{n}', '0,1')" for n in range(2)]
    assert " ".join([*alpha, "('beta', 'cuda:0', '2')"]) in places(finished), finished.tail()
