"""Collectives at one place of a group that contradict each other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_ddp.deadlock.prover import prove
from pytest_ddp.protocol.rank_status import PendingOperation
from tests.unit.standings import accused, collective, count, ended, pair, proof, running, stuck


def test_different_operations() -> None:
    hang = proof({0: stuck(pair(2)), 1: stuck(as_operation(pair(2), "barrier"))})
    assert hang.sentence == (
        "mismatch: rank 0 waits in all_reduce #2 of the default group, rank 1 in barrier #2"
    )
    assert hang.culprits == ()


def as_operation(wait: PendingOperation, operation: str) -> PendingOperation:
    return replace(wait, operation=operation, recorded_as=operation)


@pytest.mark.parametrize("operation", ["all_reduce", "broadcast", "reduce"])
def test_different_sizes(operation: str) -> None:
    mine, other = (collective(1, 0, 1, operation=operation, numel=numel) for numel in (4, 8))
    hang = proof({0: stuck(mine), 1: stuck(other)})
    assert hang.sentence == (
        f"mismatch: rank 0 waits in {operation} #1 (4 x float32) of the default group, "
        f"rank 1 in {operation} #1 (8 x float32)"
    )


def test_different_dtypes() -> None:
    mine, other = (collective(1, 0, 1, dtype=dtype) for dtype in ("float32", "int32"))
    assert "(4 x int32)" in proof({0: stuck(mine), 1: stuck(other)}).sentence


@pytest.mark.parametrize("operation", ["all_gather", "all_to_all", "gather", "scatter"])
def test_uneven_operations_may_differ_in_size(operation: str) -> None:
    mine, other = (collective(1, 0, 1, operation=operation, numel=numel) for numel in (4, 8))
    assert prove({0: stuck(mine), 1: stuck(other)}) is None


def test_names_that_users_call_it_by_do_not_contradict() -> None:
    mine = collective(1, 0, 1, recorded_as="all_gather")
    other = replace(mine, operation="all_gather_into_tensor")
    assert prove({0: stuck(mine), 1: stuck(other)}) is None


@pytest.mark.parametrize("elsewhere", [pair(3), replace(pair(2), group="3")], ids=["3", "group"])
def test_collectives_at_different_places_do_not_contradict(elsewhere: PendingOperation) -> None:
    other = as_operation(elsewhere, "barrier")
    counts = (count(2, 0, 1), count(2, 0, 1, group="3"))
    stands = {0: stuck(pair(2), counts=counts), 1: stuck(other, counts=counts)}
    assert prove(stands) is None


def test_unlike_sizes_cannot_be_seen_where_one_is_unknown() -> None:
    unknown = collective(1, 0, 1, numel=None, dtype=None)
    assert prove({0: stuck(pair(1)), 1: stuck(unknown)}) is None


def test_contradiction_with_a_rank_that_is_not_stuck_is_no_proof() -> None:
    begun = running(count(1, 0, 1), begun=(as_operation(pair(1), "barrier"),))
    assert prove({0: stuck(pair(1)), 1: begun}) is None


def test_no_other_thread_heals_a_contradiction() -> None:
    other = stuck(as_operation(pair(1), "barrier"), alone=False)
    assert accused({0: stuck(pair(1)), 1: other}) == {0, 1}


def test_contradiction_with_what_an_ended_rank_left_open() -> None:
    left_open = ended(count(1, 0, 1), begun=(as_operation(pair(1), "barrier"),))
    assert accused({0: stuck(pair(1)), 1: left_open}) == {0}


def test_contradiction_is_reported_before_other_needs() -> None:
    three = collective(2, 0, 1, 2)
    stands = {
        0: stuck(collective(3, 0, 1, 2)),
        1: stuck(three),
        2: stuck(as_operation(three, "barrier")),
    }
    assert proof(stands).sentence.startswith("mismatch: rank 1 waits in all_reduce #2")


# ------------------------------------------------------------------ roots


@pytest.mark.parametrize("operation", ["broadcast", "reduce", "gather", "scatter"])
def test_different_roots(operation: str) -> None:
    mine, other = (collective(1, 0, 1, operation=operation, root=root) for root in (1, 0))
    hang = proof({0: stuck(mine), 1: stuck(other)})
    assert hang.sentence == (
        f"mismatch: rank 0 waits in {operation} #1 (4 x float32, root 1) of the default group, "
        f"rank 1 in {operation} #1 (4 x float32, root 0)"
    )


def test_root_that_is_not_known_contradicts_nothing() -> None:
    mine, other = (collective(1, 0, 1, operation="broadcast", root=root) for root in (1, None))
    assert prove({0: stuck(mine), 1: stuck(other)}) is None


# ------------------------------------------------------------------ what is over on one side


UNLIKE = collective(1, 0, 1, numel=8)
"""A collective unlike the first collective of a pair, which has 4 elements."""


def test_wait_of_another_size_than_what_an_ended_rank_has_done() -> None:
    hang = proof({0: stuck(pair(1)), 1: ended(count(1, 0, 1), done=(UNLIKE,))})
    assert hang.sentence == (
        "mismatch: rank 0 waits in all_reduce #1 (4 x float32) of the default group, "
        "rank 1 is done with all_reduce #1 (8 x float32)"
    )
    assert hang.culprits == (1,)


def test_rank_that_went_on_waits_for_the_one_that_could_not() -> None:
    stands = {0: stuck(pair(1)), 1: stuck(pair(2), done=(UNLIKE,))}
    assert accused(stands) == {0, 1}
    assert proof(stands).sentence.startswith("mismatch: rank 0 waits in all_reduce #1 (4 x")


def test_rank_that_went_on_and_works_may_close_the_group() -> None:
    assert prove({0: stuck(pair(1)), 1: running(count(1, 0, 1), done=(UNLIKE,))}) is None


def test_what_is_done_alike_is_under_way() -> None:
    assert prove({0: stuck(pair(1)), 1: ended(count(1, 0, 1), done=(pair(1),))}) is None


@pytest.mark.parametrize("unlike", [{"numel": 8}, {"dtype": "int32"}, {"root": 2}], ids=str)
def test_third_rank_may_still_come(unlike: dict[str, Any]) -> None:
    """A third rank in the same operation may end the waits by what it brings."""
    mine = collective(1, 0, 1, 2, operation="broadcast", root=0)
    stands = {0: stuck(mine), 1: stuck(replace(mine, **unlike)), 2: running(count(0, 0, 1, 2))}
    assert prove(stands) is None
    # The third one has received what the first one sent, and waits for both elsewhere.
    later = stuck(collective(2, 0, 1, 2), done=(mine,))
    assert accused({**stands, 2: later}) == {0, 1, 2}
    assert accused({**stands, 2: ended(count(0, 0, 1, 2))}) == {0, 1}


def test_third_rank_that_died_ends_the_waits() -> None:
    mine, other = (collective(1, 0, 1, 2, numel=numel) for numel in (4, 8))
    assert prove({0: stuck(mine), 1: stuck(other)}) is None


def test_third_rank_makes_no_operation_of_another() -> None:
    mine = collective(1, 0, 1, 2)
    other = as_operation(mine, "barrier")
    stands = {0: stuck(mine), 1: stuck(other), 2: running(count(0, 0, 1, 2))}
    assert accused(stands) == {0, 1}
