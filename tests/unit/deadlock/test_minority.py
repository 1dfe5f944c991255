"""The few ranks that did not do what most did, and where none may be named."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddp.deadlock.collectives import root_cause
from pytest_ddp.deadlock.prover import ProbedRank, minority, prove
from pytest_ddp.outcome.outcome import RootCause
from tests.unit.standings import call, collective, count, ended, exchange, receive, running, stuck

ALL = (0, 1, 2, 3)


@given(st.lists(st.integers(0, 3), max_size=9), st.integers(0, 3))
def test_named_are_fewer_than_half_against_one_majority(kinds: list[int], unknown: int) -> None:
    groups = [[rank for rank, kind in enumerate(kinds) if kind == k] for k in range(4)]
    members = len(kinds) + unknown
    cause = minority(groups, members)
    assert bool(cause.ranks) != bool(cause.unknown)
    if cause.ranks:
        others = [rank for rank in range(len(kinds)) if rank not in cause.ranks]
        assert 2 * len(others) > members >= 3
        assert len({kinds[rank] for rank in cause.ranks}) == 1
        assert len({kinds[rank] for rank in others}) == 1


def test_the_few_are_named() -> None:
    assert minority([[0, 1, 3], [2], []], 4) == RootCause((2,))


@pytest.mark.parametrize(
    ("kinds", "members"),
    [([[0], [1]], 2), ([[0, 1], [2, 3]], 4), ([[0, 1, 4], [2], [3]], 5), ([[0, 1], [2]], 4)],
    ids=["two ranks", "half", "three kinds", "too many unknown"],
)
def test_none_is_named(kinds: list[list[int]], members: int) -> None:
    assert minority(kinds, members).ranks == ()


# ------------------------------------------------------------------ of a proof


def reduces(number: int = 1, **known: Any) -> ProbedRank:
    return stuck(collective(number, *ALL, **known))


def cause(*stands: ProbedRank) -> tuple[int, ...]:
    hang = prove(dict(enumerate(stands)))
    assert hang is not None
    assert bool(hang.root_cause.ranks) != bool(hang.root_cause.unknown)
    return hang.root_cause.ranks


@pytest.mark.parametrize(
    "other",
    [
        reduces(operation="broadcast"),
        reduces(numel=5),
        reduces(dtype="int32"),
        reduces(root=3),
        stuck(receive(1, 0, *ALL)),
        stuck(exchange(1, *ALL), counts=(count(0, *ALL),)),
        ended(count(0, *ALL)),
    ],
    ids=["operation", "size", "dtype", "root", "receive", "exchange", "ended"],
)
def test_rank_that_does_not_do_what_most_do(other: ProbedRank) -> None:
    usual = reduces(root=1)
    assert cause(usual, usual, other, usual) == (2,)


def test_majority_may_have_ended() -> None:
    mine = collective(1, *ALL, numel=3)
    done = ended(count(1, *ALL), done=(mine,))
    assert cause(done, done, reduces(numel=4), done) == (2,)


@pytest.mark.parametrize(
    "stands",
    [
        (reduces(), reduces(), reduces(numel=5), reduces(numel=5)),
        (reduces(), reduces(), reduces(operation="broadcast"), ended(count(0, *ALL))),
        (reduces(), reduces(), ended(count(0, *ALL)), ended(count(0, *ALL))),
    ],
    ids=["half", "three kinds", "half have ended"],
)
def test_no_rank_is_named_where_no_majority_did_the_same(stands: tuple[ProbedRank, ...]) -> None:
    assert cause(*stands) == ()


def test_no_rank_of_two_is_named() -> None:
    two = collective(1, 0, 1)
    assert cause(stuck(two), ended(count(0, 0, 1))) == ()


def test_no_rank_of_a_receive_is_named() -> None:
    assert cause(stuck(receive(1, 1, *ALL)), *(ended(count(0, *ALL)) for _ in range(3))) == ()


def test_no_rank_is_named_where_collectives_disagree() -> None:
    # Rank 3 waits for rank 2 in a group of theirs, and is as little to blame as ranks 0 and 1.
    pair = collective(1, 2, 3, group="3")
    gone = ended(count(0, *ALL), count(0, 2, 3, group="3"))
    waits = stuck(pair, counts=(count(0, *ALL), count(1, 2, 3, group="3")))
    assert cause(reduces(), reduces(), gone, waits) == ()


def test_rank_that_computes_is_not_of_the_majority() -> None:
    usual, late = reduces(), running(count(0, *ALL))
    assert cause(usual, usual, reduces(operation="broadcast", root=0), late) == ()


# ------------------------------------------------------------------ of a comparison


def compared(*numbers: int, **odd: Any) -> RootCause:
    """Ranks that issued so many all_reduces, of which those of rank 1 are odd."""
    members = range(len(numbers))
    return root_cause(
        {rank: (count(n, *members),) for rank, n in enumerate(numbers)},
        {
            rank: tuple(call(k + 1, **(odd if rank == 1 else {})) for k in range(n))
            for rank, n in enumerate(numbers)
        },
    )


@pytest.mark.parametrize(
    "odd",
    [{"numel": 5}, {"dtype": "int32"}, {"operation": "barrier"}, {"reduce_op": "MAX"}],
    ids=str,
)
def test_rank_whose_collective_is_unlike(odd: dict[str, Any]) -> None:
    assert compared(2, 2, 2, **odd) == RootCause((1,))
    assert compared(2, 2, **odd).ranks == ()


def test_rank_with_another_number_of_collectives() -> None:
    assert compared(2, 3, 2) == compared(1, 0, 1) == RootCause((1,))
    assert compared(2, 3).ranks == compared(2, 3, 4).ranks == compared(2, 2, 3, 3).ranks == ()


def test_rank_in_all_pairs_that_do_not_fit() -> None:
    def gathers(*sizes: int) -> RootCause:
        calls = {
            rank: (
                call(
                    1,
                    "all_gather",
                    numel=None,
                    sends=(f"{n} x float32",),
                    receives=("4 x float32",),
                ),
            )
            for rank, n in enumerate(sizes)
        }
        return root_cause({rank: (count(1, *range(len(sizes))),) for rank in calls}, calls)

    assert gathers(4, 4, 3) == RootCause((2,))
    assert gathers(4, 3).ranks == gathers(4, 3, 3).ranks == ()
