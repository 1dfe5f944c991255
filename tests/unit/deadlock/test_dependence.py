"""Whom a wait in a collective depends on, and what follows for the proof.

That the table is gloo's is measured in ``tests/acceptance/hangs/test_dependence.py``.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_ddp.deadlock.dependence import TABLE, dependence
from pytest_ddp.deadlock.prover import ProbedRank, prove
from tests.unit.standings import accused, collective, count, ended, proof, receive, running, stuck

THREE = (0, 1, 2)
DOCS = Path(__file__).parents[3] / "docs" / "deadlocks.md"


def rooted(operation: str, root: int | None = 0, number: int = 1) -> ProbedRank:
    """A rank that waits in an operation of three ranks."""
    return stuck(collective(number, *THREE, operation=operation, root=root))


# Rank 2 waits for a message that rank 1 sends after the operation; it has not come there yet.
BEHIND = stuck(receive(1, 1, *THREE), counts=(count(0, *THREE),))
LATE = running(count(0, *THREE))


@pytest.mark.parametrize("operation", ["broadcast", "scatter", "gather"])
def test_receivers_and_senders_need_the_root_alone(operation: str) -> None:
    assert prove({0: LATE, 1: rooted(operation), 2: BEHIND}) is None
    assert accused({0: ended(count(0, *THREE)), 1: rooted(operation), 2: BEHIND}) == {1, 2}
    # Rank 0 has come: what it sends to rank 1, or receives from it, is under way.
    assert prove({0: rooted(operation), 1: rooted(operation), 2: BEHIND}) is None


@pytest.mark.parametrize("operation", ["broadcast", "scatter", "gather", "reduce"])
def test_the_root_needs_each(operation: str) -> None:
    stands = {0: rooted(operation), 1: running(count(1, *THREE)), 2: ended(count(0, *THREE))}
    assert accused(stands) == {0}
    assert prove({**stands, 2: LATE}) is None


@pytest.mark.parametrize("operation", ["all_reduce", "all_gather", "all_to_all", "barrier"])
def test_all_need_all(operation: str) -> None:
    assert accused({0: LATE, 1: rooted(operation, None), 2: BEHIND}) == {1, 2}


@pytest.mark.parametrize("operation", ["broadcast", "scatter", "gather", "of_tomorrow"])
def test_where_the_root_or_the_operation_is_unknown_all_others_must_be_lost(operation: str) -> None:
    waits = rooted(operation, None)
    assert prove({0: LATE, 1: waits, 2: BEHIND}) is None
    assert accused({0: ended(count(0, *THREE)), 1: waits, 2: BEHIND}) == {1, 2}
    assert accused({0: BEHIND, 1: waits, 2: BEHIND}) == {0, 1, 2}
    # A rank that is gone may have been the root, and its end fails the others.
    assert prove({1: waits, 2: BEHIND}) is None


def test_of_two_ranks_each_needs_the_other_whoever_is_the_root() -> None:
    wait = collective(1, 0, 1, operation="broadcast")
    assert accused({0: stuck(wait), 1: ended(count(0, 0, 1))}) == {0}


def test_thread_of_a_rank_may_still_come_where_the_root_is_unknown() -> None:
    busy = ProbedRank(now := replace(BEHIND.now, alone=False), now, ended=False)
    assert prove({0: ended(count(0, *THREE)), 1: rooted("broadcast", None), 2: busy}) is None


@pytest.mark.parametrize("operation", ["all_reduce", "all_gather", "reduce"])
def test_tensors_without_elements_need_nobody(operation: str) -> None:
    empty = stuck(collective(1, *THREE, operation=operation, numel=0))
    assert prove({0: ended(count(0, *THREE)), 1: empty, 2: ended(count(0, *THREE))}) is None


def test_a_mismatch_with_a_rank_that_is_not_needed_keeps_nobody_waiting() -> None:
    barrier = collective(1, *THREE, operation="barrier")
    receiver, other = rooted("broadcast"), stuck(barrier)
    came = running(count(1, *THREE))
    assert prove({0: came, 1: receiver, 2: other}) is None
    assert proof({0: rooted("broadcast"), 1: receiver, 2: other}).sentence == (
        "mismatch: rank 0 waits in broadcast #1 of the default group, rank 2 in barrier #1"
    )


# ------------------------------------------------------------------ trees and rings


def needs(operation: str, size: int, root: int, numel: int = 64) -> dict[int, set[int]]:
    """Whom each rank needs."""
    wait = collective(1, *range(size), operation=operation, root=root, numel=numel)
    return {rank: set(dependence(wait, rank).ranks) for rank in range(size)}


def test_tree_of_a_broadcast() -> None:
    assert needs("broadcast", 8, 0) == {
        0: {1, 2, 4},
        1: {0, 3, 5},
        2: {0, 6},
        3: {0, 1, 7},
        4: {0},
        5: {0, 1},
        6: {0, 2},
        7: {0, 1, 3},
    }
    turned = {
        (rank + 3) % 8: {(o + 3) % 8 for o in others}
        for rank, others in needs("broadcast", 8, 0).items()
    }
    assert needs("broadcast", 8, 3) == turned


def test_ring_of_a_reduction_with_few_elements() -> None:
    # One part, which goes from rank 3 down to rank 0, where the sum is complete.
    few = {0: {1, 2, 3}, 1: {0, 2, 3}, 2: {1, 3}, 3: {2}}
    assert needs("reduce", 4, 0, numel=1) == few
    assert needs("reduce", 4, 3, numel=1) == few | {3: {0, 1, 2}}


@pytest.mark.parametrize("size", [2, 3, 4, 8, 100])
@pytest.mark.parametrize("numel", [1, 2, 17, 1000, 10**7, 10**9])
def test_what_a_reduction_needs_grows_with_its_parts(size: int, numel: int) -> None:
    found = needs("reduce", size, 0, numel)
    assert found[0] == set(range(1, size))
    for rank, others in found.items():
        assert rank not in others
        assert others >= needs("reduce", size, 0, 1)[rank] | {(rank - 1) % size}


def test_names_of_members_are_global() -> None:
    wait = collective(1, 7, 3, 5, operation="broadcast", root=3)
    assert {rank: set(dependence(wait, rank).ranks) for rank in wait.members} == {
        3: {5, 7},
        5: {3},
        7: {3},
    }


def test_the_page_has_the_table() -> None:
    rows = [
        f"| {', '.join(row.operations)} | {row.who} | {row.needs} | {row.reason} |" for row in TABLE
    ]
    page = DOCS.read_text(encoding="utf-8")
    assert [row for row in rows if row not in page] == []
