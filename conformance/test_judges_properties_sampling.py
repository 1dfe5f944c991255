"""Properties of the sampling judges: all that is legal passes, any single breach is named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ddp_conformance.checks import judge_sampling
from ddp_conformance.history import Delivered, Drawn, Draws, EpochEnd, Record, Sample
from hypothesis import given
from hypothesis import strategies as st

from conformance.strategies import dealt, quick, world_sizes


@st.composite
def allowed_shares(draw: st.DrawFn, trait: str) -> tuple[int, list[list[int]]]:
    """A size and shares that use as much of the allowance of ``pads`` or ``drops`` as they like."""
    size, world_size = draw(st.integers(1, 30)), draw(world_sizes)
    allowed = -size % world_size if trait == "pads" else size % world_size
    used = draw(st.integers(0, min(allowed, size)))
    chosen = draw(st.permutations(range(size)))[:used]
    items = [*range(size), *chosen] if trait == "pads" else sorted({*range(size)} - {*chosen})
    return size, dealt(draw, items, world_size)


def coverage(shares: Sequence[Sequence[int]], size: int, trait: str) -> list[str]:
    history: list[Record] = []
    for rank, share in enumerate(shares):
        history += [Sample(rank, 0, step, index) for step, index in enumerate(share)]
        history.append(EpochEnd(rank, 0, len(share)))
    found = judge_sampling.judge_coverage(history, size, len(shares), {trait})
    return [violation.what for violation in found]


@quick
@given(allowed_shares("pads"))
def test_padding_passes_up_to_the_allowance(case: tuple[int, list[list[int]]]) -> None:
    size, shares = case
    assert coverage(shares, size, "pads") == []
    surplus = -size % len(shares)
    shares[-1] += [0] * (surplus + 1)
    assert any(text.startswith("index 0 delivered ") for text in coverage(shares, size, "pads"))


@quick
@given(allowed_shares("drops"))
def test_dropping_passes_up_to_the_allowance(case: tuple[int, list[list[int]]]) -> None:
    size, shares = case
    assert coverage(shares, size, "drops") == []
    missing = size % len(shares)
    gone = set(range(missing + 1)) & set(range(size))
    shares = [[index for index in share if index not in gone] for share in shares]
    named = {int(text.split()[1]) for text in coverage(shares, size, "drops")}
    assert named >= gone if len(gone) > missing else not named


@quick
@given(st.lists(st.integers(0, 9), min_size=1, max_size=5))
def test_numbers_of_batches_pass_if_they_are_equal(batches: list[int]) -> None:
    history = [EpochEnd(rank, 0, number) for rank, number in enumerate(batches)]
    found = judge_sampling.judge_equal_batches(history)
    assert bool(found) == (len(set(batches)) > 1)


@st.composite
def draws_and_shares(draw: st.DrawFn) -> tuple[list[int], list[list[int]]]:
    """One draw, with repetitions, and any way to deal it out."""
    drawn = draw(st.lists(st.integers(0, 9), min_size=1, max_size=20))
    return drawn, dealt(draw, drawn, draw(world_sizes))


def torn(drawn: Sequence[int], shares: Sequence[Sequence[int]]) -> list[str]:
    history: list[Record] = [Drawn(rank, tuple((i,) for i in drawn)) for rank in range(len(shares))]
    history += [Delivered(rank, tuple((i,) for i in share)) for rank, share in enumerate(shares)]
    return [violation.what for violation in judge_sampling.judge_one_draw(history, 0, 0)]


@quick
@given(draws_and_shares(), st.data())
def test_any_deal_of_one_draw_passes_and_any_change_is_named(
    case: tuple[list[int], list[list[int]]], data: st.DataObject
) -> None:
    drawn, shares = case
    assert torn(drawn, shares) == []
    rank = data.draw(st.sampled_from([r for r, share in enumerate(shares) if share]))
    place = data.draw(st.integers(0, len(shares[rank]) - 1))
    item = shares[rank][place]
    lost = [[*share] for share in shares]
    del lost[rank][place]
    times = drawn.count(item)
    assert torn(drawn, lost) == [f"index {item} delivered {times - 1} times, drawn {times} times"]
    lost[rank] += [item, item]
    assert torn(drawn, lost) == [f"index {item} delivered {times + 1} times, drawn {times} times"]


streams = st.lists(
    st.builds(
        Draws,
        rank=st.integers(0, 3),
        epoch=st.integers(0, 1),
        worker=st.integers(-1, 1),
        generator=st.sampled_from(["python", "numpy", "torch"]),
        values=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    ),
    min_size=1,
    max_size=12,
    unique_by=lambda draws: (draws.generator, draws.values),
)


@quick
@given(streams, st.data())
def test_unlike_streams_pass_and_any_copy_is_named(
    history: list[Draws], data: st.DataObject
) -> None:
    assert judge_sampling.judge_streams(history) == ()
    copied = data.draw(st.sampled_from(history))
    (found,) = judge_sampling.judge_streams([*history, replace(copied, rank=9)])
    assert found.what.startswith(f"{copied.generator} draws ")
    assert f"rank {copied.rank}" in found.what
    assert "rank 9" in found.what
