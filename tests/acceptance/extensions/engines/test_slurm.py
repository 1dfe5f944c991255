"""``--ddp-machines=slurm``: with stand-ins for SLURM's commands."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator

import pytest

from tests.acceptance.extensions.engines.slurmcommands import slurm_on
from tests.acceptance.extensions.engines.verdicts import Verdicts, examples
from tests.acceptance.extensions.machines.cluster import Cluster
from tests.acceptance.suite import Finished, Suite

SLURM = "--ddp-machines=slurm"
PASSING = """
    import os

    import pytest


    @pytest.mark.ddp(world_size=2)
    def test_passes(ddp):
        assert ddp.gather(os.environ["SLURMD_NODENAME"]) == ["alpha", "beta"]
"""


@pytest.fixture(scope="module")
def variables(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """Variables of a batch script that has both machines."""
    with slurm_on(cluster, tmp_path_factory.mktemp("bin")) as variables:
        yield variables


@pytest.fixture(scope="module")
def session(
    cluster: Cluster, variables: dict[str, str], new_suite: Callable[[], Suite]
) -> Finished:
    return cluster.run_alone(examples(new_suite()), SLURM, env=variables)


class TestVerdicts(Verdicts):
    """Verdicts of ranks on two machines."""


def test_ranks_keep_slurms_variables_of_their_node(
    cluster: Cluster, variables: dict[str, str], suite: Suite
) -> None:
    suite.write("test_a.py", PASSING)
    finished = cluster.run_alone(suite, SLURM, env=variables)
    finished.assert_outcomes(passed=1)
    assert finished.returncode == 0
    assert cluster.survivors_after(3) == []


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"SLURM_JOB_NODELIST": None}, "SLURM_JOB_NODELIST not set: this is no allocation. Start"),
        ({"SLURM_STEP_NUM_TASKS": "2"}, "2 tasks run pytest: it is one, and starts agents."),
        ({"SLURMD_NODENAME": None}, "pytest runs on no node of SLURM and not on one of the"),
        ({"SLURMD_NODENAME": "login"}, "pytest runs on login and not on one of the allocation's "
         "(alpha, beta)"),
        ({"SLURM_JOB_NODELIST": "x"}, "`scontrol show hostnames x` failed: wrong list"),
        ({"SLURMD_NODENAME": "beta"}, "node 1 (alpha) did not come: its command ended with code 1: "
         "srun: unrecognized option '--nodelist=alpha'. `srun --overlap"),
    ],
)  # fmt: skip
def test_what_is_no_place_for_it_is_an_error_at_the_start(
    cluster: Cluster,
    variables: dict[str, str],
    suite: Suite,
    changed: dict[str, str | None],
    words: str,
) -> None:
    suite.write("test_a.py", PASSING)
    finished = cluster.run_alone(suite, SLURM, env={**variables, **changed})
    assert finished.returncode == pytest.ExitCode.USAGE_ERROR, finished.tail()
    assert f"ERROR: --ddp-machines=slurm: {words}" in finished.flat
    assert "sbatch --nodes=2" in finished.flat or "scontrol" in words or "srun" in words
    assert cluster.survivors_after(3) == []


LONG = """
    import time

    import pytest


    @pytest.mark.ddp(world_size=2, timeout=60)
    def test_long(ddp):
        if ddp.rank:
            open("begun", "w").close()
        time.sleep(40)
"""


def test_nothing_survives_a_kill_of_pytest(
    cluster: Cluster, variables: dict[str, str], suite: Suite
) -> None:
    suite.write("test_a.py", LONG)
    running = cluster.start_alone(suite, SLURM, env=variables)
    deadline = time.monotonic() + 90
    while not (suite.directory / "begun").exists():
        assert time.monotonic() < deadline, "the test did not begin"
        time.sleep(0.05)
    os.kill(running.pid, signal.SIGKILL)
    running.finish(30)
    assert cluster.survivors_after(10) == []
