"""Fixtures wider than a test ask for ``ddp``: their place is true as long as they are up."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.acceptance.suite import SPAWNED, UNDER_XDIST, Finished, Suite, flat

CONFTEST = """
    import os
    from pathlib import Path

    import pytest

    def note(what, ddp):
        with (Path(__file__).parent / "log").open("a") as log:
            log.write(f"{what} rank {ddp.rank} of {ddp.world_size} in {os.getpid()}\\n")

    @pytest.fixture(scope="session")
    def place(ddp):
        note("place up", ddp)
        everybody = ddp.gather((ddp.rank, ddp.world_size, os.getpid()))
        yield ddp.rank, ddp.world_size, str(ddp.device), everybody
        assert ddp.gather(os.getpid()) == [pid for _, _, pid in everybody]
        note("place down", ddp)
"""
SUITE = """
    import os
    import threading
    import time

    import pytest
    import torch.distributed as dist

    from conftest import note

    @pytest.fixture(scope="module")
    def last(ddp):
        yield ddp
        ddp.barrier()
        note("last down", ddp)

    @pytest.fixture(scope="module")
    def asked_late(request):
        return request.getfixturevalue("ddp").broadcast("words")

    def check(ddp, place):
        rank, world_size, device, everybody = place
        assert (rank, world_size, device) == (ddp.rank, ddp.world_size, str(ddp.device))
        assert everybody[rank] == (rank, world_size, os.getpid())
        assert ddp.gather(everybody) == [everybody] * world_size
        assert dist.get_world_size() == world_size

    @pytest.mark.ddp(world_size=2)
    def test_two(ddp, place, last):
        check(ddp, place)
        assert last is ddp

    @pytest.mark.ddp(world_size=[3, 1, 2])
    def test_sizes(ddp, place, asked_late):
        check(ddp, place)
        assert asked_late == "words"

    @pytest.mark.ddp(world_size=2, isolate=True)
    def test_isolated(ddp, place):
        check(ddp, place)

    @pytest.mark.ddp(world_size=2)
    def test_after_isolated(ddp, place):
        check(ddp, place)

    @pytest.fixture(scope="class")
    def numbers(ddp):
        yield ddp.gather(ddp.rank)
        ddp.barrier()

    @pytest.mark.ddp(world_size=2)
    class TestClass:
        def test_one(self, numbers):
            assert numbers == [0, 1]

        def test_leaves_a_thread(self, ddp, numbers, place, last):
            check(ddp, place)
            if ddp.rank == 1:
                threading.Thread(target=time.sleep, args=(600,), daemon=True).start()

        def test_after_it(self, ddp, numbers, place, last):
            check(ddp, place)

    def test_plain():
        pass
"""
BAD = """
    import os

    import pytest

    @pytest.fixture(scope="session")
    def parting(ddp):
        yield
        if ddp.rank == 1:
            raise RuntimeError("before the barrier")
        ddp.barrier()

    @pytest.mark.ddp(world_size=2)
    def test_first(parting):
        pass

    @pytest.mark.ddp(world_size=2, isolate=True)
    def test_second():
        pass

    @pytest.mark.ddp(world_size=2)
    def test_dies(ddp, place):
        if ddp.rank == 1:
            os._exit(3)
        ddp.barrier()

    @pytest.mark.ddp(world_size=2)
    def test_after_death(ddp, place):
        assert len(place[-1]) == 2

    def test_plain(place):
        pass
"""


def check_log(run: Finished) -> None:
    """Whatever was set up came down, on all ranks of its world."""
    log = (run.directory / "log").read_text()
    up, down = (sorted(re.findall(rf"place {way} (.*)", log)) for way in ("up", "down"))
    assert up == down
    assert len(up) >= 4


def suite_of(new_suite: Callable[[], Suite]) -> Suite:
    suite = new_suite()
    suite.write("conftest.py", CONFTEST)
    suite.write("test_suite.py", SUITE)
    return suite


WAYS = {
    "one": (10, ()),
    "xdist": (10, ("-n", "2")),
    "spawn": (3, ("--ddp-start-method=spawn", "-k", "two or isolated")),
}


@pytest.mark.skipif(UNDER_XDIST or SPAWNED, reason="runs both itself")
@pytest.mark.parametrize("way", WAYS)
def test_places_are_true_and_all_comes_down(new_suite: Callable[[], Suite], way: str) -> None:
    passed, args = WAYS[way]
    run = suite_of(new_suite).run(*args, timeout=120)
    run.assert_outcomes(passed=passed)
    assert run.returncode == 0
    assert "error outside of the tests" not in run.stdout
    check_log(run)


@pytest.fixture(scope="module")
def bad(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("conftest.py", CONFTEST)
    suite.write("test_suite.py", BAD)
    return suite.run()


def test_a_plain_test_that_asks_for_such_a_fixture_gets_an_error(bad: Finished) -> None:
    assert bad["test_plain"].verdict == "error"
    text = flat(bad["test_plain"].text)
    assert text == (
        "no ddp test is running in this process; mark the test with "
        "@pytest.mark.ddp(world_size=...). Fixtures that request ddp are for such tests"
    )


def test_a_barrier_that_a_rank_misses_in_the_last_teardown_ends_at_once(bad: Finished) -> None:
    assert bad["test_first"].verdict == bad["test_second"].verdict == "passed"
    assert "RuntimeError: before the barrier" in bad.stdout
    assert "can never complete: rank 1 has ended its teardown" in bad.flat


def test_after_a_death_the_fixture_is_set_up_on_all_ranks(bad: Finished) -> None:
    assert bad["test_dies"].verdict == "failed"
    assert bad["test_after_death"].verdict == "passed"
