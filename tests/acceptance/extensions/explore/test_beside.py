"""Exploring beside other ways to run tests: xdist, a debugger, spawn, torchrun's tests, torch's."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from tests.acceptance.suite import Suite, flat
from tests.acceptance.terminal.test_debugger import Terminal

BODY = """
    import os
    import time
    from pathlib import Path

    import pytest
    import torch
    import torch.distributed as dist


    def race(rank, path):
        if rank == 0:
            path.write_text("x")
        dist.barrier()
        if rank == 1:
            open(path).close()
        else:
            time.sleep(0.4)
            path.unlink()
        dist.barrier()
"""

MARKED = (
    BODY
    + """

    @pytest.mark.ddp(world_size=2)
    def test_race(ddp, tmp_path):
        race(ddp.rank, tmp_path / "in")


    @pytest.mark.ddp(world_size=2)
    def test_right(ddp, tmp_path):
        (tmp_path / str(ddp.rank)).write_text("x")
        dist.barrier()
"""
)

OF_TORCHRUN = (
    BODY
    + """

    def test_race():
        dist.init_process_group("gloo")
        race(int(os.environ["RANK"]), Path(__file__).with_name("in"))
"""
)

OF_TORCH = (
    BODY
    + """
    from torch.testing._internal.common_distributed import MultiProcessTestCase


    class TestRace(MultiProcessTestCase):
        world_size = 2

        def setUp(self):
            super().setUp()
            self._spawn_processes()

        def test_race(self):
            store = dist.FileStore(self.file_name, self.world_size)
            dist.init_process_group("gloo", store=store, rank=self.rank, world_size=2)
            race(self.rank, Path(__file__).with_name("in"))
"""
)

SCHEDULE = "--ddp-schedule=1@open:in#1"
FIRST = "fails when rank 1 is late before open(in) at test_it.py:16"


@pytest.fixture(scope="module")
def marked(new_suite: Callable[[], Suite]) -> Suite:
    suite = new_suite()
    suite.write("test_it.py", MARKED)
    return suite


def test_workers_of_xdist_explore(marked: Suite) -> None:
    run = marked.run("-n2", "--ddp-explore=4", extra=())
    run.assert_outcomes(failed=1, passed=1)
    assert flat(run["test_race"].text).startswith(f"{FIRST}; passes otherwise")


@pytest.mark.exhaustive
def test_a_worker_refuses_a_schedule_for_several_tests(marked: Suite) -> None:
    run = marked.run("-n2", SCHEDULE, extra=())
    run.assert_outcomes(error=2)
    assert "a schedule is for one test, and 2 ddp tests are selected" in run.flat


@pytest.mark.exhaustive
def test_a_replay_under_spawn(marked: Suite) -> None:
    run = marked.run("--ddp-start-method=spawn", SCHEDULE, "-k", "race", extra=(), timeout=180)
    assert flat(run["test_race"].text).startswith(FIRST)


@pytest.mark.skipif("DDP_ACCEPTANCE_ARGS" in os.environ, reason="a session on a terminal")
def test_a_debugger_opens_in_a_replay(marked: Suite) -> None:
    user = Terminal(marked.directory, "--pdb", SCHEDULE, "-k", "race")
    assert "FileNotFoundError" in user.prompt(1, 2)
    user.type("p path.name")
    assert "'in'" in user.prompt(1, 2)
    user.type("c")
    code, rest = user.end()
    assert (code, FIRST in flat(rest)) == (1, True), rest


@pytest.mark.parametrize(
    ("source", "option"),
    [(OF_TORCHRUN, "--ddp-everywhere=2"), (OF_TORCH, "--ddp-adopt=testcase")],
    ids=["everywhere", "adopted"],
)
def test_suites_of_others_are_explored(suite: Suite, source: str, option: str) -> None:
    suite.write("test_it.py", source)
    run = suite.run(option, "--ddp-explore=6", timeout=120)
    (result,) = run.results.values()
    assert result.verdict == "failed"
    assert flat(result.text).startswith("fails when rank 1 is late before open(rootdir/in) at")
