"""A host or a rank that is killed at its start costs one test at most, if it comes up then."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.acceptance.suite import SPAWNED, Finished, Suite

INI = "[pytest]\nasyncio_default_fixture_loop_scope = function\npythonpath = site-packages\n"

PARTY = """
    import os
    import signal
    from pathlib import Path

    DEATHS = Path(os.environ["DEATHS"])

    def die(name, times, pid):
        for number in range(times):
            try:
                (DEATHS / f"{name}{number}").touch(exist_ok=False)
            except FileExistsError:
                continue
            os.kill(pid, signal.SIGKILL)
            signal.pause()

    def who():
        if os.environ["CONTROLLER"] == str(os.getpid()):
            return "controller"
        return f"rank {os.environ['RANK']}" if "RANK" in os.environ else "host"
"""
"""What kills a process so many times, and then lets it be."""

TESTS = """
    import os
    import signal

    import pytest
    import torch
    import torch.distributed as dist
    import doomed
    import party

    @pytest.mark.ddp(world_size=2)
    def test_first(ddp):
        # here
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == 2

    @pytest.mark.ddp(world_size=2)
    def test_second(ddp):
        dist.barrier()

    @pytest.mark.ddp(world_size=2)
    def test_third(ddp):
        dist.barrier()
"""

CONFTEST = """
    import os

    os.environ.setdefault("CONTROLLER", str(os.getpid()))
"""
IMPORTING = f"{CONFTEST}\n    import doomed\n"
"""A rank imports its conftests before it comes up, and the test files after."""
HOST = "import os, party\nif party.who() == 'host':\n    party.die('host', {}, os.getppid())\n"
"""A trial fork of the host imports it: the process that is known as the host is its parent."""
TRIAL = "import os, party\nif party.who() == 'host':\n    party.die('trial', 9, os.getpid())\n"
RESTART = """
import os, party
if party.who() == 'host' and (party.DEATHS / 'test0').exists():
    party.die('restart', 1, os.getppid())
"""
KILLS_ITS_HOST = "ddp.rank or party.die('test', 1, os.getppid())"
EVERY_RANK = (
    "import party\nif party.who().startswith('rank'):\n    party.die('all', 9, party.os.getpid())\n"
)
RANK = "import os, party\nif party.who() == 'rank 1':\n    party.die('rank', {}, os.getpid())\n"


@pytest.fixture
def run(new_suite: Callable[[], Suite]) -> Callable[..., Finished]:
    def run(doomed: str, tests: str = TESTS, conftest: str = CONFTEST) -> Finished:
        suite = new_suite()
        suite.write("pytest.ini", INI)
        suite.write("conftest.py", conftest)
        suite.write("site-packages/party.py", PARTY)
        suite.write("site-packages/doomed.py", doomed)
        suite.write("test_it.py", tests)
        deaths = suite.directory.with_name(f"{suite.directory.name}-deaths")
        deaths.mkdir()
        return suite.run(env={"DEATHS": str(deaths)}, extra=())

    return run


# Without a host that imports there is nothing of it to kill.
forked = pytest.mark.skipif(SPAWNED, reason="a spawned rank has a host that imports nothing")


@forked
def test_a_host_that_is_killed_once_costs_no_test(run: Callable[..., Finished]) -> None:
    finished = run(HOST.format(1))
    finished.assert_outcomes(passed=3)
    (warning,) = finished.warnings
    assert "the host process of the ranks died of SIGKILL while it collected" in warning
    assert "was started anew" in warning


@forked
def test_a_host_that_is_killed_twice_is_given_up(run: Callable[..., Finished]) -> None:
    finished = run(HOST.format(9))
    finished.assert_outcomes(error=3)
    text = "the host process of the ranks died of SIGKILL while it collected"
    assert text in finished["test_first"].text
    assert "see test_it.py::test_first" in finished["test_third"].text


@forked
def test_a_restart_that_is_killed_costs_no_further_test(run: Callable[..., Finished]) -> None:
    finished = run(
        RESTART, TESTS.replace("# here", "ddp.rank or party.die('test', 1, os.getppid())")
    )
    finished.assert_outcomes(error=1, passed=2)
    assert "before test_it.py::test_first had ended" in finished["test_first"].text


@forked
def test_an_import_that_kills_is_left_to_the_ranks(run: Callable[..., Finished]) -> None:
    finished = run(TRIAL)
    finished.assert_outcomes(passed=3)
    assert finished.warnings == ()


def test_a_rank_that_is_killed_at_its_start_costs_one_test(run: Callable[..., Finished]) -> None:
    finished = run(RANK.format(1), conftest=IMPORTING)
    finished.assert_outcomes(error=1, passed=2)
    assert "rank 1 died of SIGKILL at its start" in finished["test_first"].text


def test_ranks_that_are_killed_at_every_start_are_given_up(run: Callable[..., Finished]) -> None:
    finished = run(EVERY_RANK, conftest=IMPORTING)
    finished.assert_outcomes(error=3)
    assert "died of SIGKILL at its start" in finished["test_second"].text
    assert "see test_it.py::test_second" in finished["test_third"].text
