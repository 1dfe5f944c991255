"""ddp tests shared out among jobs by pytest-split, by the times that it has written down."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.acceptance.suite import SPAWNED, UNDER_XDIST, Finished, Suite

pytestmark = pytest.mark.skipif(UNDER_XDIST, reason="with xdist each worker would choose anew")

SPAWN = ("--ddp-start-method=spawn",) if SPAWNED else ()
SLEPT = {"test_naps[0]": 0.0, "test_naps[1]": 0.5, "test_naps[2]": 1.0, "test_waits": 0.75}
SOURCE = """
    import time

    import pytest
    import torch
    import torch.distributed as dist

    @pytest.mark.ddp(world_size=2)
    @pytest.mark.parametrize("half_seconds", range(3))
    def test_naps(ddp, half_seconds):
        time.sleep(half_seconds / 2)
        dist.all_reduce(torch.ones(1))

    @pytest.fixture
    def slow():
        time.sleep(0.75)

    @pytest.mark.ddp(world_size=2)
    def test_waits(ddp, slow):
        dist.all_reduce(torch.ones(1))
"""


@pytest.fixture(scope="module")
def shared_out(new_suite: Callable[[], Suite]) -> Suite:
    suite = new_suite()
    suite.write("test_naps.py", SOURCE)
    return suite


@pytest.fixture(scope="module")
def timed(shared_out: Suite) -> dict[str, float]:
    finished = shared_out.run("--store-durations", extra=SPAWN)
    assert finished.returncode == pytest.ExitCode.OK, finished.tail()
    stored = json.loads((finished.directory / ".test_durations").read_text())
    return {nodeid.partition("::")[2]: seconds for nodeid, seconds in stored.items()}


@pytest.fixture(scope="module")
def groups(shared_out: Suite, timed: dict[str, float]) -> list[Finished]:
    chosen = ("--splits=2", "--splitting-algorithm=least_duration")
    return [shared_out.run(*chosen, f"--group={group}", extra=SPAWN) for group in (1, 2)]


@pytest.mark.parametrize("name", SLEPT)
def test_the_time_of_a_test_is_that_of_its_ranks(timed: dict[str, float], name: str) -> None:
    assert SLEPT[name] <= timed[name] < SLEPT[name] + 20, timed


def test_each_test_is_in_one_group(groups: list[Finished], timed: dict[str, float]) -> None:
    ran = [nodeid.partition("::")[2] for group in groups for nodeid in group.results]
    assert sorted(ran) == sorted(timed) == sorted(SLEPT)


def test_tests_of_a_group_pass(groups: list[Finished]) -> None:
    for group in groups:
        group.assert_outcomes(passed=len(group.results))
        assert len(group.results) >= 1


def test_ranks_do_not_print_what_was_chosen(groups: list[Finished]) -> None:
    for group in groups:
        assert group.output.count("[pytest-split] Running group") == 1, group.tail()
        assert "[rank " not in group.output, group.tail()
