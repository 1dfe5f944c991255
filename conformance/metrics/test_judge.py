"""The judges of the metric guarantees on hand-made histories, and what they are fed with."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from ddp_conformance.framework.history import Collective, Failed, Measured, Record
from ddp_conformance.lockstep.lockstep import END, DivergedError, Lockstep
from ddp_conformance.lockstep.same_calls import judge_same_calls
from ddp_conformance.metrics import checks as metrics
from ddp_conformance.metrics import judge
from ddp_conformance.metrics.history import Expected
from ddp_conformance.metrics.subjects import (
    mean_value,
    rounded_batch,
    sample_value,
    value_batch,
    values_of,
)

from conformance.simulated_ranks import SimulatedRanks, on_ranks

STAGE = "epoch"


def reported(*values: float | None, expected: float = 2.0) -> list[Record]:
    """One report: rank ``r`` gave ``values[r]``."""
    history: list[Record] = [Expected(0, STAGE, (expected,))]
    for rank, value in enumerate(values):
        history.append(Measured(rank, STAGE, () if value is None else (value,)))
    return history


def called(*by_rank: Sequence[str]) -> list[Record]:
    return [
        Collective(rank, number, what)
        for rank, calls in enumerate(by_rank)
        for number, what in enumerate(calls)
    ]


def texts(history: Sequence[Record], tolerance: float = 1e-5) -> list[str]:
    return [str(violation) for violation in judge.judge_values(history, tolerance)]


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("allreduce float32[1]", "allreduce float32[]", True),
        ("allreduce float32[1, 3]", "allreduce float32[3, 1]", True),
        ("allreduce float32[1]", "allreduce float64[]", False),
        ("allreduce float32[1]", "allreduce float32[11]", False),
        ("allreduce float32[2, 3]", "allreduce float32[3, 2]", False),
        ("allreduce float32[0]", "allreduce float32[]", False),
        ("allgather int64[1] int64[1]", "allgather int64[] int64[1]", True),
        ("allgather int64[1] int64[1]", "allgather int64[]", False),
    ],
)
def test_dimensions_of_one_are_no_difference(one: str, other: str, equal: bool) -> None:
    assert (judge_same_calls(called([one], [other])) == ()) == equal


# ---------------------------------------------------------------- values


@pytest.mark.parametrize(
    "history",
    [
        pytest.param(reported(2.0, 2.0), id="equal"),
        pytest.param(reported(2.00001, 2.00001), id="within-tolerance"),
        pytest.param(reported(float("nan"), float("nan"), expected=float("nan")), id="nan"),
        pytest.param([*reported(2.0, 2.0), *called(["sum", END], ["sum", END])], id="same-calls"),
    ],
)
def test_right_reports_pass(history: list[Record]) -> None:
    assert texts(history) == []


@pytest.mark.parametrize(
    ("history", "witnesses"),
    [
        pytest.param(
            reported(2.0, 2.5),
            [
                "epoch: rank 1 reports 2.5, a single process 2",
                "epoch: the ranks' reports differ: rank 0: 2.0; rank 1: 2.5",
            ],
            id="one-rank-wrong",
        ),
        pytest.param(
            reported(1.5, 1.5),
            [f"epoch: rank {rank} reports 1.5, a single process 2" for rank in (0, 1)],
            id="equally-wrong",
        ),
        pytest.param(
            reported(2.0, 2.0000000000000004, 2.0),
            [
                "epoch: the ranks' reports differ: ranks 0 and 2: 2.0; rank 1: 2.0000000000000004",
            ],
            id="last-bit",
        ),
        pytest.param(
            reported(None, None),
            [f"epoch: rank {rank} reports nothing, a single process 2" for rank in (0, 1)],
            id="nothing",
        ),
        pytest.param(
            reported(float("nan")), ["epoch: rank 0 reports nan, a single process 2"], id="nan"
        ),
        pytest.param(
            [*reported(2.0), Failed(1, "ValueError: no samples"), *called([END], ["sum"])],
            ["rank 1 reports nothing: ValueError: no samples"],
            id="raised",
        ),
        pytest.param(
            [*reported(2.0), *called([END], ["sum"])],
            [f"collective 0: rank 0 {END}, rank 1 sum"],
            id="diverged",
        ),
    ],
)
def test_wrong_reports_are_named(history: list[Record], witnesses: list[str]) -> None:
    assert texts(history) == witnesses


def test_ranks_that_report_one_wrong_value_are_alike() -> None:
    assert judge.judge_alike(reported(1.5, 1.5)) == ()
    assert judge.judge_alike(reported(math.nan, math.nan)) == ()
    (violation,) = judge.judge_alike(reported(1.5, 1.5000000000000002))
    assert "the ranks' reports differ: rank 0: 1.5; rank 1: " in str(violation)
    (raised,) = judge.judge_alike([*reported(1.5), Failed(1, "ValueError: no")])
    assert str(raised) == "rank 1 reports nothing: ValueError: no"


def test_long_reports_are_cut() -> None:
    assert judge.in_words(range(6)) == "0, 1, 2, 3, ..."


# ---------------------------------------------------------------- calls


def test_the_first_different_call_is_named_with_its_line() -> None:
    history = [
        *called(["barrier"], ["barrier"]),
        Collective(0, 1, "allreduce float64[]", "train.py:7"),
        Collective(1, 1, END),
    ]
    (violation,) = judge_same_calls(history)
    assert str(violation) == f"collective 1: rank 0 allreduce float64[] (train.py:7), rank 1 {END}"


def test_a_rank_without_a_call_differs() -> None:
    (violation,) = judge_same_calls(called(["sum", END], ["sum"]))
    assert str(violation) == f"collective 1: rank 0 {END}, rank 1 nothing"


def test_lines_are_no_evidence() -> None:
    history = [Collective(rank, 0, "broadcast", f"train.py:{rank}") for rank in (0, 1)]
    assert judge_same_calls(history) == ()


# ---------------------------------------------------------------- deals and values


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("deal", [*metrics.UNEVEN.values(), *metrics.WITH_EMPTY.values()])
def test_deals_give_each_sample_to_one_rank(deal: metrics.Deal, world_size: int) -> None:
    for size in (*metrics.uneven_sizes(world_size), world_size):
        shares = deal(size, world_size)
        assert len(shares) == world_size
        assert sorted(index for share in shares for index in share) == list(range(size))


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_sizes_are_not_all_multiples_of_the_world_size(world_size: int) -> None:
    rests = {size % world_size for size in metrics.uneven_sizes(world_size)}
    assert 0 in rests
    assert len(rests) > 1
    for deal in metrics.UNEVEN.values():
        assert all(deal(size, world_size)[-1] for size in metrics.uneven_sizes(world_size))


def test_no_sample_is_like_the_mean() -> None:
    """A sample that counts twice, or not at all, shows."""
    mean = mean_value(range(33))
    assert all(abs(sample_value(index) - mean) > 0.01 for index in range(33))


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_the_order_of_addition_shows_in_rounded_values(world_size: int) -> None:
    """Ranks that add up in an order of their own differ, with values of float32 in float64."""

    def sums(values: Sequence[float]) -> set[float]:
        shares = [values[rank::world_size] for rank in range(world_size)]
        orders = [shares[rank:] + shares[:rank] for rank in range(world_size)]
        return {sum(value for share in order for value in share) for order in orders}

    rounded, exact = rounded_batch(range(8 * world_size)), value_batch(range(8 * world_size))
    assert len(sums(exact[0].tolist())) == 1
    assert len(sums(rounded[0].tolist())) > 1
    assert all((abs(rounded[0]) <= abs(exact[0])) & (rounded[0].sign() == exact[0].sign()))


@pytest.mark.parametrize(
    ("report", "values"),
    [
        (None, ()),
        (2, (2.0,)),
        (torch.tensor([[1.0, 2.0]]), (1.0, 2.0)),
        ({"b": 1.0, "a": torch.tensor(2.0)}, (2.0, 1.0)),
        ((1, [2.0]), (1.0, 2.0)),
    ],
)
def test_reports_become_numbers(report: object, values: tuple[float, ...]) -> None:
    assert values_of(report) == values


def test_a_report_without_numbers_is_refused() -> None:
    with pytest.raises(TypeError, match="is no report; return a number"):
        values_of(object())


# ---------------------------------------------------------------- lockstep


def test_announcements_that_differ_stop_all() -> None:
    def body(ranks: SimulatedRanks) -> list[str]:
        lockstep = Lockstep(ranks)
        lockstep.announce("sum")
        with pytest.raises(DivergedError, match="rank 0: sum, rank 1: gather"):
            lockstep.announce("sum" if ranks.rank == 0 else "gather")
        with pytest.raises(DivergedError, match="already differ; barrier was not started"):
            lockstep.announce("barrier")
        return [call.what for call in lockstep.calls]

    assert on_ranks(2, body) == [["sum", "sum"], ["sum", "gather"]]


@pytest.mark.parametrize(
    "history", [[], [Expected(0, "epoch", (1.0,))], [Measured(0, "epoch", (1.0,))]]
)
def test_nothing_to_compare_is_no_pass(history: list[Record]) -> None:
    (violation,) = judge.judge_values(history, 1e-5)
    assert str(violation) == "nothing was reported, or nothing to compare it with"


def test_a_rank_without_any_collective_is_named() -> None:
    history = [Collective(0, 0, "allreduce"), Measured(0, "e", ()), Measured(1, "e", ())]
    (violation,) = judge_same_calls(history)
    assert str(violation) == "collective 0: rank 0 allreduce, rank 1 nothing"


def test_a_collective_that_is_recorded_twice_is_one_too_many() -> None:
    calls = [Collective(rank, 0, "allreduce") for rank in (0, 1, 1)]
    (violation,) = judge_same_calls(calls)
    assert str(violation) == "collective 1: rank 0 nothing, rank 1 allreduce"


# ---------------------------------------------------------------- against the metric's own values


def measured(stage: str, *values: float) -> list[Record]:
    return [Measured(rank, stage, (value,)) for rank, value in enumerate(values)]


WRONG = [*measured("batches in turn", 3.0, 3.0), *measured("most on rank 0", 3.00001, 3.00001)]


def test_a_metric_that_is_merely_wrong_has_a_value_of_its_own() -> None:
    assert judge.own_value(WRONG, 1e-5) == (3.0,)
    unlike = [
        [*WRONG, *measured("elsewhere", 4.0, 4.0)],
        [*WRONG, *measured("elsewhere", 3.0, 3.000001)],
        [],
    ]
    assert [judge.own_value(history, 1e-5) for history in unlike] == [()] * 3


def unharmed(history: Sequence[Record], own: Sequence[float] = (3.0,)) -> list[str]:
    return [str(found) for found in judge.judge_unharmed(history, own, "without", 1e-5)]


def test_an_empty_rank_changes_no_value_be_it_right_or_wrong() -> None:
    assert unharmed(measured("empty", 3.0, 3.0)) == []
    assert unharmed(measured("empty", 4.0, 4.0), ()) == [], "there is nothing to compare it with"
    assert unharmed(measured("empty", 3.0, float("nan"))) == [
        "empty: rank 1 reports nan, without 3",
        "empty: the ranks' reports differ: rank 0: 3.0; rank 1: nan",
    ]
    assert unharmed([Failed(1, "ValueError: x")], ()) == ["rank 1 reports nothing: ValueError: x"]
    (text,) = unharmed([*measured("empty", 3.0, 3.0), *called([END], ["sum"])], ())
    assert text.startswith("collective 0: ")


def unchanged(history: Sequence[Record], new: Sequence[Record]) -> list[str]:
    return [str(found) for found in judge.judge_unchanged(history, new, 1e-5)]


def test_a_used_metric_reports_on_each_rank_what_a_new_one_does() -> None:
    new = measured("again", 3.0, 5.0)  # that the ranks differ is a matter of MET-01
    assert unchanged(measured("again", 3.0, 5.0), new) == []
    assert unchanged(measured("again", 3.0, 3.0), new) == [
        "again: rank 1 reports 3, a new metric 5"
    ]
    assert unchanged(measured("again", 3.0), new) == [
        "again: rank 1 reports nothing, a new metric 5"
    ]
    assert unchanged([], []) == ["nothing was reported"]
    (text,) = unchanged([*new, *called([END], ["sum"])], new)
    assert text.startswith("collective 0: ")


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_no_rank_is_empty_where_empty_ranks_are_compared_with(world_size: int) -> None:
    size = 2 * metrics.BATCH * world_size - 2
    batches = {tuple(range(s, min(s + metrics.BATCH, size))) for s in range(0, size, metrics.BATCH)}
    for deal in metrics.WITHOUT_EMPTY.values():
        shares = deal(size, world_size)
        assert len(shares) == world_size
        assert all(shares)
        starts = [(s, i) for s in shares for i in range(0, len(s), metrics.BATCH)]
        assert {tuple(s[i : i + metrics.BATCH]) for s, i in starts} == batches
