"""What --ddp-machines does not go with, and who has not started pytest as it must be."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.acceptance.suite import Suite, flat

NODE_0 = {
    "RANK": "0",
    "WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29518",
    "PYTEST_DDP_SECRET": "of the tests",
}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--pdb"], "--pdb and --trace: no terminal reaches ranks of other machines"),
        (["-n2"], "workers of pytest-xdist (-n): leave it out"),
    ],
)
def test_what_is_not_made_right_is_refused(suite: Suite, arguments: list[str], words: str) -> None:
    suite.write("test_a.py", "def test_plain(): pass")
    finished = suite.run("--ddp-machines=torchrun", *arguments, env=NODE_0, extra=())
    assert finished.returncode == pytest.ExitCode.USAGE_ERROR
    assert f"--ddp-machines does not go with {words}." in finished.flat


def test_coverage_run_whose_data_nodes_would_write_over_is_refused(suite: Suite) -> None:
    suite.write("test_a.py", "def test_plain(): pass")
    ran = subprocess.run(
        [sys.executable, "-m", "coverage", "run", "-m", "pytest", "--ddp-machines=torchrun"],
        cwd=suite.directory,
        env={**os.environ, **NODE_0},
        check=False,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--ddp-machines does not go with coverage run without --parallel-mode" in flat(
        ran.stderr
    )


def test_the_error_without_a_launcher_has_how_to_start(suite: Suite) -> None:
    suite.write("test_a.py", "def test_plain(): pass")
    finished = suite.run("--ddp-machines=torchrun", extra=())
    assert finished.returncode == pytest.ExitCode.USAGE_ERROR
    assert "was not started by torchrun" in finished.flat
    assert "torchrun --nnodes=2 --nproc-per-node=1" in finished.flat


def test_an_engine_that_is_none_is_named(suite: Suite) -> None:
    finished = suite.run("--ddp-machines=flux", extra=())
    assert finished.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--ddp-machines=flux: it is torchrun, ray, ray:N, slurm or ssh:HOST," in finished.flat


@pytest.mark.parametrize("question", ["--collect-only", "--markers", "--help", "--fixtures"])
def test_nodes_beside_node_0_answer_no_questions(suite: Suite, question: str) -> None:
    suite.write("test_a.py", "def test_plain(): pass")
    env = NODE_0 | {"RANK": "1", "WORLD_SIZE": "2"}
    finished = suite.run("--ddp-machines=torchrun", question, env=env, extra=())
    assert finished.returncode == 0
    assert finished.stdout == ""


@pytest.mark.parametrize("question", ["--collect-only", "--markers", "--fixtures"])
def test_questions_start_no_agents(suite: Suite, question: str) -> None:
    suite.write("test_a.py", "def test_plain(): pass")
    finished = suite.run("--ddp-machines=ssh:no.such.host.invalid", question, extra=())
    assert finished.returncode == 0, finished.tail()


def test_more_nodes_than_ranks_is_a_wrong_mark(suite: Suite) -> None:
    suite.write(
        "test_a.py",
        """
        import pytest


        @pytest.mark.ddp(world_size=2, nodes=3)
        def test_a(ddp): ...
        """,
    )
    finished = suite.run(extra=())
    assert "nodes=3, world_size=2" in finished.flat
    assert "each machine has a rank at least" in finished.flat


def test_a_session_on_one_machine_skips_what_wants_two(suite: Suite) -> None:
    suite.write(
        "test_a.py",
        """
        import pytest


        @pytest.mark.ddp(world_size=2, nodes=2)
        def test_two(ddp): ...


        @pytest.mark.ddp(world_size=2, nodes=1)
        def test_one(ddp): ...
        """,
    )
    finished = suite.run(extra=())
    finished.assert_outcomes(passed=1, skipped=1)
    said = "nodes=2: 2 machines needed, this session has one"
    assert said in finished["test_two"].text


def test_a_launcher_with_one_node_runs_all_there(suite: Suite) -> None:
    suite.write(
        "test_a.py",
        """
        import pytest
        import torch
        import torch.distributed as dist


        @pytest.mark.ddp(world_size=2)
        def test_two(ddp):
            total = torch.ones(1)
            dist.all_reduce(total)
            assert total.item() == 2
        """,
    )
    finished = suite.run("--ddp-machines=torchrun", env=NODE_0, extra=())
    finished.assert_outcomes(passed=1)
    assert finished.returncode == 0
