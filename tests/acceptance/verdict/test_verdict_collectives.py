"""Ranks that issued unequal numbers of collectives fail, although every assert passed.

And the other side of it: ranks that legally do different work pass.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.acceptance.suite import Finished, Suite
from tests.acceptance.verdict.collective_examples import (
    EQUAL,
    EQUAL_NAMES,
    UNEQUAL,
    UNEQUAL_NAMES,
    with_next,
)


@pytest.fixture(scope="module")
def finished(new_suite: Callable[[], Suite]) -> Finished:
    suite = new_suite()
    suite.write("test_unequal.py", with_next(UNEQUAL))
    suite.write("test_equal.py", with_next(EQUAL))
    return suite.run("--ddp-timeout=20", timeout=150)


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("name", EQUAL_NAMES)
def test_legal_work_passes(finished: Finished, name: str) -> None:
    result = finished[f"test_{name}"]
    assert result.verdict == "passed", result.text


@pytest.mark.parametrize("name", UNEQUAL_NAMES + EQUAL_NAMES)
def test_next_test_passes(finished: Finished, name: str) -> None:
    result = finished[f"test_after_{name.partition('[')[0]}"]
    assert result.verdict == "passed", result.text


@pytest.mark.parametrize("rank", range(3))
@pytest.mark.parametrize(
    ("name", "usual", "unusual"),
    [("one_more_left_pending", 2, 3), ("one_less", 1, 0)],
)
def test_unequal_number_is_a_failure(
    finished: Finished, name: str, usual: int, unusual: int, rank: int
) -> None:
    result = finished[f"test_{name}[{rank}]"]
    peers = {0: "ranks 1-2", 1: "ranks 0, 2", 2: "ranks 0-1"}[rank]
    message = result.phase("call").message
    assert result.verdict == "failed"
    assert "unequal number of collectives on the default group" in message
    assert f"rank {rank} issued {unusual}" in message
    assert f"{peers} issued {usual}" in message
    assert "unequal number of collectives" in words(result.text)


@pytest.mark.parametrize("rank", range(3))
def test_wait_for_ranks_that_have_ended_is_a_failure(finished: Finished, rank: int) -> None:
    result = finished[f"test_broadcast_by_source_alone[{rank}]"]
    assert result.verdict == "failed"
    assert f"rank {rank}" in result.phase("call").message
    assert "broadcast" in result.text


def test_unequal_number_in_subgroup_names_it(finished: Finished) -> None:
    result = finished["test_in_subgroup"]
    message = result.phase("call").message
    assert result.verdict == "failed"
    assert "unequal number of collectives" in message
    assert "ranks 0, 2" in message
    assert "the default group" not in message
    assert "rank 0 issued 1, rank 2 issued 0" in message


def test_unequal_number_can_be_expected(finished: Finished) -> None:
    assert finished["test_expected"].verdict == "xfailed"
    other = finished["test_expects_another"]
    assert other.verdict == "failed"
    assert words(other.text).startswith("unequal number of collectives on the default group: ")


def test_unequal_number_is_a_note_beside_a_failure(finished: Finished) -> None:
    result = finished["test_failure_is_reported_first"]
    assert result.verdict == "failed"
    assert "the failure" in result.phase("call").message
    text = words(result.text)
    assert text.index("the failure") < text.index("unequal number of collectives")


@pytest.mark.parametrize("name", ["in_teardown", "skip"])
def test_unequal_number_counts_to_the_end_of_the_test(finished: Finished, name: str) -> None:
    result = finished[f"test_{name}"]
    assert "failed" in {report.outcome for report in result.reports}
    assert "unequal number of collectives" in words(result.text)
