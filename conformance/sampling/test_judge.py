"""The judges of the sampling guarantees on hand-made histories; no ranks, no loaders."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from ddp_conformance.framework.allowance import Terms
from ddp_conformance.framework.history import Record, Refused
from ddp_conformance.framework.verdict import Violation
from ddp_conformance.sampling import judge
from ddp_conformance.sampling.history import Delivered, Drawn, Draws, EpochEnd, Sample
from hypothesis import given, settings
from hypothesis import strategies as st

NONE: frozenset[str] = frozenset()
PADS = frozenset({"pads"})
DROPS = frozenset({"drops"})

Shares = Sequence[Sequence[int]]


def epoch_of(shares: Shares, epoch: int = 0) -> list[Record]:
    """One epoch in which rank ``r`` delivered ``shares[r]``, one sample in a batch."""
    history: list[Record] = []
    for rank, share in enumerate(shares):
        history += [Sample(rank, epoch, step, index) for step, index in enumerate(share)]
        history.append(EpochEnd(rank, epoch, len(share)))
    return history


def texts(found: Sequence[Violation]) -> list[str]:
    return [str(violation) for violation in found]


def coverage(shares: Shares, size: int, traits: frozenset[str] = NONE) -> list[str]:
    found = judge.judge_coverage(epoch_of(shares), size, len(shares), Terms(traits))
    return [str(violation) for violation in found]


# ---------------------------------------------------------------- coverage


@pytest.mark.parametrize(
    ("shares", "size", "traits"),
    [
        pytest.param([[0, 2], [3, 1]], 4, NONE, id="even"),
        pytest.param([[0, 2, 4], [1, 3]], 5, NONE, id="uneven"),
        pytest.param([[0, 2, 4], [1, 3, 0]], 5, PADS, id="padded"),
        pytest.param([[0], [0], [0], [0]], 1, PADS, id="fewer-samples-than-ranks"),
        pytest.param([[0, 2], [1, 3]], 5, DROPS, id="dropped"),
        pytest.param([[], [], []], 2, DROPS, id="all-dropped"),
        pytest.param([[0], [], []], 1, NONE, id="empty-ranks"),
        pytest.param([[1, 0]], 2, NONE, id="one-rank"),
    ],
)
def test_legal_shares_pass(shares: Shares, size: int, traits: frozenset[str]) -> None:
    assert coverage(shares, size, traits) == []


@pytest.mark.parametrize(
    ("shares", "size", "traits", "witnesses"),
    [
        pytest.param(
            [[0, 1, 7], [2, 7]], 8, NONE,
            [
                "epoch 0: index 3 delivered by no rank",
                "epoch 0: index 4 delivered by no rank",
                "epoch 0: index 5 delivered by no rank",
                "epoch 0: index 6 delivered by no rank",
                "epoch 0: index 7 delivered by ranks 0 and 1",
            ],
            id="lost-and-doubled",
        ),
        pytest.param(
            [[0, 0], [1]], 2, NONE, ["epoch 0: index 0 delivered 2 times by rank 0"], id="same-rank"
        ),
        pytest.param(
            [[0, 1], [0, 1], [0, 1]], 2, PADS,
            [
                "epoch 0: index 0 delivered by ranks 0, 1 and 2 (1 allowed)",
                "epoch 0: index 1 delivered by ranks 0, 1 and 2 (1 allowed)",
            ],
            id="more-than-padding",
        ),
        pytest.param(
            [[0, 2], [1, 0]], 3, NONE, ["epoch 0: index 0 delivered by ranks 0 and 1"],
            id="padding-not-declared",
        ),
        pytest.param(
            [[0], [1]], 3, NONE, ["epoch 0: index 2 delivered by no rank"], id="drop-not-declared"
        ),
        pytest.param(
            [[0], [1]], 5, DROPS,
            [f"epoch 0: index {i} delivered by no rank (1 allowed)" for i in (2, 3, 4)],
            id="more-than-the-tail",
        ),
        pytest.param(
            [[0, 2, 0], [1, 0]], 4, PADS,
            [
                "epoch 0: index 3 delivered by no rank",
                "epoch 0: index 0 delivered by ranks 0, 0 and 1",
            ],
            id="no-padding-needed",
        ),
        pytest.param(
            [[0, 5], [1]], 2, NONE,
            ["epoch 0: index 5 is not in the data set, delivered by rank 0"],
            id="foreign",
        ),
    ],
)  # fmt: skip
def test_illegal_shares_are_named(
    shares: Shares, size: int, traits: frozenset[str], witnesses: list[str]
) -> None:
    assert coverage(shares, size, traits) == witnesses


def test_workers_are_named_where_known() -> None:
    history = [Sample(0, 0, 0, 0, worker=0), Sample(0, 0, 1, 0, worker=1), EpochEnd(0, 0, 2)]
    found = judge.judge_coverage(history, 1, 1, Terms())
    assert [v.what for v in found] == ["index 0 delivered by rank 0 worker 0 and rank 0 worker 1"]


def test_an_epoch_without_any_sample_is_judged() -> None:
    found = judge.judge_coverage([EpochEnd(0, 3, 0), EpochEnd(1, 3, 0)], 1, 2, Terms())
    assert [str(v) for v in found] == ["epoch 3: index 0 delivered by no rank"]


def test_epochs_are_judged_apart() -> None:
    history = epoch_of([[0], [1]], epoch=0) + epoch_of([[0], [0]], epoch=1)
    assert [v.epoch for v in judge.judge_coverage(history, 2, 2, Terms())] == [1, 1]


def test_an_endless_epoch_is_a_violation_everywhere() -> None:
    history = [Sample(0, 0, 0, 0), EpochEnd(0, 0, 18, exhausted=False)]
    text = "epoch 0: rank 0 did not end the epoch within 18 batches"
    for found in (
        judge.judge_coverage(history, 1, 1, Terms()),
        judge.judge_exactly_once(history, 1),
        judge.judge_equal_batches(history),
    ):
        assert [str(violation) for violation in found] == [text]


@st.composite
def legal_histories(draw: st.DrawFn) -> tuple[int, list[list[int]]]:
    """A size, and any assignment of its samples to 1 to 4 ranks, each sample once."""
    size = draw(st.integers(1, 30))
    world_size = draw(st.integers(1, 4))
    owners = draw(st.lists(st.integers(0, world_size - 1), min_size=size, max_size=size))
    order = draw(st.permutations(range(size)))
    return size, [[i for i in order if owners[i] == rank] for rank in range(world_size)]


@settings(deadline=None)  # the machine may be busy
@given(legal_histories())
def test_any_assignment_that_covers_all_passes(case: tuple[int, list[list[int]]]) -> None:
    size, shares = case
    assert judge.judge_exactly_once(epoch_of(shares), size) == ()
    assert coverage(shares, size) == []


@settings(deadline=None)  # the machine may be busy
@given(legal_histories(), st.data())
def test_any_lost_sample_is_named(case: tuple[int, list[list[int]]], data: st.DataObject) -> None:
    size, shares = case
    lost = data.draw(st.integers(0, size - 1))
    shares = [[index for index in share if index != lost] for share in shares]
    assert coverage(shares, size) == [f"epoch 0: index {lost} delivered by no rank"]


@settings(deadline=None)  # the machine may be busy
@given(legal_histories(), st.data())
def test_any_doubled_sample_is_named(
    case: tuple[int, list[list[int]]], data: st.DataObject
) -> None:
    size, shares = case
    doubled = data.draw(st.integers(0, size - 1))
    shares[data.draw(st.integers(0, len(shares) - 1))].append(doubled)
    (found,) = coverage(shares, size)
    assert found.startswith(f"epoch 0: index {doubled} delivered ")


def test_evaluation_allows_nothing() -> None:
    padded = epoch_of([[0, 2], [1, 0]])
    (violation,) = judge.judge_exactly_once(padded, 3)
    assert str(violation) == "epoch 0: index 0 delivered by ranks 0 and 1"


# ---------------------------------------------------------------- numbers of batches


def test_equal_batches() -> None:
    assert judge.judge_equal_batches(epoch_of([[0, 1], [2, 3]])) == ()
    (violation,) = judge.judge_equal_batches(epoch_of([[0, 1], [2], [3]]))
    assert str(violation) == "epoch 0: batches: 1 on ranks 1 and 2, 2 on rank 0"


def test_a_rank_without_batches_counts() -> None:
    (violation,) = judge.judge_equal_batches(epoch_of([[0], []]))
    assert str(violation) == "epoch 0: batches: 0 on rank 1, 1 on rank 0"


# ---------------------------------------------------------------- order

ORDER = list(range(10))
TURNED = ORDER[::-1]


def test_an_order_that_changes_passes() -> None:
    assert judge.judge_order_changes(epoch_of([ORDER]) + epoch_of([TURNED], 1)) == ()


def test_an_order_that_stays_is_named() -> None:
    history = epoch_of([TURNED, ORDER]) + epoch_of([ORDER, ORDER], 1)
    (violation,) = judge.judge_order_changes(history)
    assert str(violation) == (
        "epoch 1: rank 1 has the order of epoch 0 again: 0, 1, 2, 3, 4, 5, ..."
    )


def test_an_order_that_returns_later_is_named() -> None:
    history = epoch_of([ORDER]) + epoch_of([TURNED], 1) + epoch_of([ORDER], 2)
    (violation,) = judge.judge_order_changes(history)
    assert violation.epoch == 2


def test_few_samples_prove_nothing() -> None:
    short = ORDER[: judge.RELIABLE_ORDER - 1]
    assert judge.judge_order_changes(epoch_of([short]) + epoch_of([short], 1)) == ()


def test_an_order_that_hangs_on_history_is_named() -> None:
    first = epoch_of([ORDER]) + epoch_of([TURNED], 1)
    assert judge.judge_order_repeats(first, epoch_of([TURNED], 1)) == ()
    (violation,) = judge.judge_order_repeats(first, epoch_of([ORDER], 1))
    assert str(violation) == (
        "epoch 1: rank 0 delivered 9, 8, 7, 6, 5, 4, ..., "
        "but started anew at this epoch 0, 1, 2, 3, 4, 5, ..."
    )


def test_an_order_that_appears_from_nothing_is_named() -> None:
    (violation,) = judge.judge_order_repeats([EpochEnd(0, 1, 0)], epoch_of([[3]], 1))
    assert "delivered nothing, but" in str(violation)


# ---------------------------------------------------------------- one draw


def dealt(draws: Shares, shares: Shares) -> list[Record]:
    """Rank ``r`` drew ``draws[r]`` and delivered ``shares[r]``."""
    history: list[Record] = [Drawn(r, tuple((i,) for i in d)) for r, d in enumerate(draws)]
    return history + [Delivered(r, tuple((i,) for i in s)) for r, s in enumerate(shares)]


def test_shares_of_one_draw_pass() -> None:
    assert judge.judge_one_draw(dealt([[2, 2, 0]], [[2, 0], [2]]), 0, 0) == ()
    assert judge.judge_one_draw(dealt([[2, 1, 0], [2, 1, 0]], [[2, 0], [1, 2]]), 1, 0) == ()
    assert judge.judge_one_draw(dealt([[2, 1, 0]], [[2], [1]]), 0, 1) == ()


def test_shares_of_two_draws_are_named() -> None:
    (violation,) = judge.judge_one_draw(dealt([[0, 1], [1, 0]], [[0], [0]]), 0, 0)
    assert violation.what == "2 different global orders were drawn, by ranks 0 and 1"


def drawn_again(shares: Shares) -> list[Record]:
    """Rank 0 drew 5, 3, 4 and then 2, 1, 0, and all delivered of that."""
    return [Drawn(0, ((5,), (3,), (4,))), *dealt([[2, 1, 0]], shares)]


@pytest.mark.parametrize("shares", [[[2, 0], [1, 5]], [[5, 4], [3, 5]], [[2, 0], [1, 2]]])
def test_shares_that_another_draw_fills_up_pass(shares: Shares) -> None:
    assert judge.judge_one_draw(drawn_again(shares), 1, 0) == ()


def test_shares_of_parts_of_two_draws_are_named() -> None:
    found = judge.judge_one_draw(drawn_again([[2, 5], [1, 3]]), 1, 0)
    assert [violation.what for violation in found] == [
        "index 1 delivered 1 times, drawn 0 times",
        "index 2 delivered 1 times, drawn 0 times",
        "index 4 delivered 0 times, drawn 1 times",
    ]


def test_ranks_that_draw_again_and_differ_then_are_named() -> None:
    history = [*dealt([[0, 1], [0, 1]], [[0], [1]]), Drawn(0, ((1,), (0,))), Drawn(1, ((0,), (1,)))]
    (violation,) = judge.judge_one_draw(history, 0, 0)
    assert violation.what == "2 different global orders were drawn, by ranks 0 and 1"


def test_a_sampler_that_was_not_asked_is_named() -> None:
    (violation,) = judge.judge_one_draw(dealt([], [[0], [1]]), 0, 0)
    assert violation.what == "the wrapper never iterated over the sampler"


@pytest.mark.parametrize(
    ("drawn", "shares", "surplus", "missing", "witnesses"),
    [
        ([0, 1, 2], [[0], [1]], 0, 0, ["index 2 delivered 0 times, drawn 1 times"]),
        ([0, 1, 2], [[0], [0]], 0, 1, [
            "index 0 delivered 2 times, drawn 1 times",
            "index 1 delivered 0 times, drawn 1 times",
            "index 2 delivered 0 times, drawn 1 times",
        ]),
        ([0, 1], [[0, 5], [1]], 1, 0, ["index 5 delivered 1 times, drawn 0 times"]),
        ([0, 1], [[0, 1], [1, 0]], 1, 0, [
            "index 0 delivered 2 times, drawn 1 times",
            "index 1 delivered 2 times, drawn 1 times",
        ]),
    ],
)  # fmt: skip
def test_differences_to_the_draw_are_named(
    drawn: list[int], shares: Shares, surplus: int, missing: int, witnesses: list[str]
) -> None:
    found = judge.judge_one_draw(dealt([drawn], shares), surplus, missing)
    assert [violation.what for violation in found] == witnesses


def test_torn_batches_are_named() -> None:
    history = [Drawn(0, ((0, 1), (2, 3))), Delivered(0, ((0, 2),)), Delivered(1, ((1, 3),))]
    found = judge.judge_one_draw(history, 2, 2)
    assert [violation.what for violation in found] == [
        "batch [0, 2] delivered 1 times, drawn 0 times",
        "batch [1, 3] delivered 1 times, drawn 0 times",
    ]


def test_refusals() -> None:
    equal = [Refused(0, "TypeError"), Refused(1, "TypeError")]
    assert judge.judge_one_draw(equal, 0, 0) == ()
    (violation,) = judge.judge_one_draw([*equal, Refused(2, "ValueError")], 0, 0)
    assert violation.what == "ranks refused differently: TypeError, ValueError"
    (violation,) = judge.judge_one_draw([*equal, Delivered(2, ())], 0, 0)
    assert violation.what == "ranks 0 and 1 refused with TypeError, rank 2 did not"


# ---------------------------------------------------------------- random streams


def test_streams_that_differ_pass() -> None:
    history = [
        Draws(rank, epoch, worker, generator, (float(rank), float(worker), float(epoch)))
        for rank in (0, 1)
        for worker in (0, 1)
        for epoch in (0, 1)
        for generator in ("python", "torch")
    ]
    assert judge.judge_streams(history) == ()


@pytest.mark.parametrize(
    ("other", "who"),
    [
        (Draws(1, 0, 0, "numpy", (0.5, 0.25)), "rank 1 worker 0 in epoch 0"),
        (Draws(0, 0, 1, "numpy", (0.5, 0.25)), "rank 0 worker 1 in epoch 0"),
        (Draws(0, 1, -1, "numpy", (0.5, 0.25)), "rank 0 in epoch 1"),
    ],
)
def test_streams_that_agree_are_named(other: Draws, who: str) -> None:
    (violation,) = judge.judge_streams([Draws(0, 0, 0, "numpy", (0.5, 0.25)), other])
    assert violation.what == f"numpy draws 0.5, 0.25 for rank 0 worker 0 in epoch 0 as for {who}"


COINS = (0.0, 1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0)


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        pytest.param((0.1, 0.2), (0.1, 0.2), False, id="two-numbers"),
        pytest.param((0.1, 0.2, 0.3), (0.1, 0.2, 0.3), False, id="three-may-be-of-a-few"),
        pytest.param(tuple(range(8)), tuple(range(8)), True, id="eight"),
        pytest.param(tuple(range(8)), tuple(range(30)), True, id="as-far-as-both-have-some"),
        pytest.param(tuple(range(8)), (*range(7), 9), False, id="one-other"),
        pytest.param(COINS, COINS, False, id="a-few-tosses"),
        pytest.param(COINS * 4, COINS * 4, True, id="many-tosses"),
        pytest.param((0.0,) * 64, (0.0,) * 64, False, id="always-one-number"),
        pytest.param((float("nan"),) * 8, (float("nan"),) * 8, False, id="no-numbers"),
    ],
)
def test_drawn_numbers_agree_by_more_than_chance(
    first: tuple[float, ...], second: tuple[float, ...], same: bool
) -> None:
    history = [Draws(0, 0, -1, "crops", first), Draws(1, 0, -1, "crops", second)]
    found = [str(violation) for violation in judge.judge_drawn(history)]
    shown = ", ".join(f"{value:.4g}" for value in first[:3])
    words = f"crops draws {shown} for rank 0 in epoch 0 as for rank 1 in epoch 0"
    assert found == ([words] if same else [])


def test_right_coins_are_never_accused() -> None:
    """4 ranks with 2 workers each in 2 epochs, of every length and many a bias."""
    coins = random.Random(0)
    for bias, length in itertools.product((0.5, 0.1, 0.01), (3, 8, 32)):
        for _ in range(100):
            history = [
                Draws(rank, epoch, worker, "flips", tuple(float(coins.random() < bias)
                                                          for _ in range(length)))
                for rank in range(4) for worker in range(2) for epoch in range(2)
            ]  # fmt: skip
            assert judge.judge_drawn(history) == ()


# ------------------------------------------------------------------ what is not there


def test_no_epoch_at_all_is_no_pass() -> None:
    for found in (
        judge.judge_coverage([], 3, 2, Terms()),
        judge.judge_exactly_once([], 3),
        judge.judge_equal_batches([]),
    ):
        assert [str(violation) for violation in found] == ["no epoch was seen"]


def test_a_rank_that_never_ended_an_epoch_is_named() -> None:
    history = [EpochEnd(0, 0, 1), EpochEnd(1, 0, 1), EpochEnd(0, 1, 1)]
    (violation,) = judge.judge_equal_batches(history)
    assert str(violation) == "epoch 1: rank 1 never came to the end of the epoch"


def test_a_rank_that_delivers_nothing_when_started_anew_is_named() -> None:
    first = [Sample(0, epoch, 0, 5) for epoch in (0, 1)]
    (violation,) = judge.judge_order_repeats(first, [EpochEnd(0, 1, 0)])
    assert str(violation) == ("epoch 1: rank 0 delivered 5, but started anew at this epoch nothing")
    (violation,) = judge.judge_order_repeats(first, [])
    assert str(violation) == "no epoch was started anew"


# ------------------------------------------------------------------ draws, passes, copies, groups


def dealt_in_turn(stream: list[int], world_size: int) -> list[Record]:
    """The deliveries of an endless part until the check stopped."""
    shares = [stream[rank::world_size] for rank in range(world_size)]
    return [
        replace(one, exhausted=False) if isinstance(one, EpochEnd) else one
        for one in epoch_of(shares)
    ]


DRAWS = Terms({"replacement"})
MANY = list(range(0, 20, 2))


def test_draws_with_replacement_may_repeat_and_leave_out() -> None:
    assert judge.judge_coverage(epoch_of([[0, 0, 1], [1, 1, 0]]), 6, 2, DRAWS) == ()
    zeros = epoch_of([[0] * 10, [0] * 10])
    assert judge.judge_coverage(zeros, 20, 2, DRAWS) == (), "by chance, if the weight is all its"


@pytest.mark.parametrize("other", [MANY, MANY[::-1]], ids=["same", "in-another-order"])
def test_equal_draws_are_named(other: list[int]) -> None:
    (text,) = texts(judge.judge_coverage(epoch_of([MANY, other]), 20, 2, DRAWS))
    assert text == "epoch 0: rank 0 and rank 1 draw the same: 0, 2, 4, 6, 8, 10, ..."


def test_the_beginning_of_the_same_draw_is_named() -> None:
    uneven = [MANY, [*MANY, 1]]
    (text,) = texts(judge.judge_coverage(epoch_of(uneven), 21, 2, DRAWS))
    assert "rank 0 and rank 1 draw the same" in text


def test_another_number_of_draws_is_named() -> None:
    history = epoch_of([[0, 1, 2], [2, 4, 0]])
    (text,) = texts(judge.judge_coverage(history, 5, 2, DRAWS))
    assert text == "epoch 0: 6 samples delivered by all ranks together, not 5"
    assert judge.judge_coverage(history, 5, 2, Terms({"replacement", "pads"})) == ()
    assert judge.judge_coverage(history, 5, 2, Terms({"replacement"}, draws=lambda n: n + 1)) == ()


def test_endless_passes_that_are_shared_pass() -> None:
    stream = [2, 0, 1, 4, 3, 0, 4, 2, 1, 3, 1, 0]
    endless = Terms({"endless"})
    assert judge.judge_coverage(dealt_in_turn(stream, 2), 5, 2, endless) == ()
    same = [i for index in stream for i in (index, index)]
    found = texts(judge.judge_coverage(dealt_in_turn(same, 2), 5, 2, endless))
    assert found == ["2 of 5 samples come too rarely in 6 deliveries; index 3 by no rank"]
    ended = epoch_of([[0, 1, 2], [3, 4, 0]])
    assert texts(judge.judge_coverage(ended, 5, 2, endless)) == [
        f"epoch 0: rank {rank} ends after 3 batches" for rank in (0, 1)
    ]


def test_copies_are_counted() -> None:
    twice = Terms(copies=2)
    assert judge.judge_coverage(epoch_of([[0, 1], [0, 1]]), 2, 2, twice) == ()
    assert texts(judge.judge_coverage(epoch_of([[0, 1, 0], [0, 1]]), 2, 2, twice)) == [
        "epoch 0: index 0 delivered by ranks 0, 0 and 1, 2 declared"
    ]
    assert texts(judge.judge_coverage(epoch_of([[0, 1], [0]]), 2, 2, twice)) == [
        "epoch 0: index 1 delivered by rank 0, 2 declared"
    ]
    part = Terms(copies=2, draws=lambda size: size)
    assert judge.judge_coverage(epoch_of([[0], [0]]), 2, 2, part) == ()
    assert len(judge.judge_coverage(epoch_of([[0, 1], [0]]), 2, 2, part)) == 1


def test_each_group_has_its_own_padding() -> None:
    grouped = Terms({"pads"}, groups=lambda size: [index % 2 for index in range(size)])
    assert judge.judge_coverage(epoch_of([[0, 1, 2], [4, 3, 0]]), 5, 2, grouped) == ()
    assert texts(judge.judge_coverage(epoch_of([[0, 1, 2], [4, 3, 1]]), 5, 2, grouped)) == [
        "epoch 0: index 1 delivered by ranks 0 and 1"
    ]
