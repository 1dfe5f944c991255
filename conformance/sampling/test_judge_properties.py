"""Properties of the sampling judges: all that is legal passes, any single breach is named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ddp_conformance.framework.allowance import Terms
from ddp_conformance.framework.history import Record
from ddp_conformance.sampling import judge as judge_sampling
from ddp_conformance.sampling.history import Delivered, Drawn, Draws, EpochEnd, Sample
from hypothesis import given
from hypothesis import strategies as st

from conformance.strategies import (
    any_record,
    changed,
    dealt,
    others,
    quick,
    texts,
    without,
    world_sizes,
)


@st.composite
def allowed_shares(draw: st.DrawFn, trait: str) -> tuple[int, list[list[int]]]:
    """A size and shares that use as much of the allowance of ``pads`` or ``drops`` as they like."""
    size, world_size = draw(st.integers(1, 30)), draw(world_sizes)
    allowed = -size % world_size if trait == "pads" else size % world_size
    used = draw(st.integers(0, min(allowed, size)))
    chosen = draw(st.permutations(range(size)))[:used]
    items = [*range(size), *chosen] if trait == "pads" else sorted({*range(size)} - {*chosen})
    return size, dealt(draw, items, world_size)


def delivered(shares: Sequence[Sequence[int]]) -> list[Record]:
    history: list[Record] = []
    for rank, share in enumerate(shares):
        history += [Sample(rank, 0, step, index) for step, index in enumerate(share)]
        history.append(EpochEnd(rank, 0, len(share)))
    return history


def coverage(shares: Sequence[Sequence[int]], size: int, trait: str) -> list[str]:
    found = judge_sampling.judge_coverage(delivered(shares), size, len(shares), Terms({trait}))
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
@given(allowed_shares("pads"), st.data())
def test_any_index_of_no_sample_and_any_lost_end_are_named(
    case: tuple[int, list[list[int]]], data: st.DataObject
) -> None:
    size, shares = case
    history = delivered(shares)
    rank = data.draw(st.integers(0, len(shares) - 1))
    index = data.draw(others(st.integers(-3, 40), *range(size)))
    foreign = [*history, Sample(rank, 0, 99, index)]
    for found in (
        judge_sampling.judge_coverage(foreign, size, len(shares), Terms({"pads"})),
        judge_sampling.judge_exactly_once(foreign, size),
    ):
        named = f"epoch 0: index {index} is not in the data set, delivered by rank {rank}"
        assert named in texts(found)
    end = any_record(data, history, EpochEnd)
    second = [EpochEnd(r, 1, 0) for r in range(len(shares))]
    found = judge_sampling.judge_equal_batches([*without(history, end), *second])
    assert f"epoch 0: rank {end.rank} never came to the end of the epoch" in texts(found)
    endless = changed(history, end, exhausted=False)
    text = f"epoch 0: rank {end.rank} did not end the epoch within {end.batches} batches"
    assert text in texts(judge_sampling.judge_ended(endless))


@quick
@given(st.lists(st.integers(0, 9), min_size=1, max_size=6))
def test_numbers_of_batches_pass_if_they_are_equal(batches: list[int]) -> None:
    history = [EpochEnd(rank, 0, number) for rank, number in enumerate(batches)]
    found = texts(judge_sampling.judge_equal_batches(history))
    assert len(found) == (len(set(batches)) > 1)
    for text in found:
        few, many = min(batches), max(batches)
        assert f"batches: {few} on rank" in text
        assert f"{batches.index(few)}" in text
        assert f", {many} on rank" in text


@st.composite
def orders(draw: st.DrawFn) -> list[Record]:
    """Unlike orders in each epoch, on ranks with enough samples to tell."""
    world_size, size = draw(world_sizes), judge_sampling.RELIABLE_ORDER
    history: list[Record] = []
    for rank in range(world_size):
        first = draw(st.permutations(range(size)))
        for epoch in range(draw(st.integers(1, 3))):
            order = [*first[epoch:], *first[:epoch]]
            history += [Sample(rank, epoch, step, index) for step, index in enumerate(order)]
            history.append(EpochEnd(rank, epoch, size))
    return history


@quick
@given(orders(), st.data())
def test_any_order_that_comes_again_or_does_not_is_named(
    history: list[Record], data: st.DataObject
) -> None:
    last = any_record(data, history, EpochEnd)
    own = [
        r for r in history if isinstance(r, Sample) and (r.rank, r.epoch) == (last.rank, last.epoch)
    ]
    anew = [r for r in history if isinstance(r, Sample | EpochEnd) and r.epoch == last.epoch]
    assert judge_sampling.judge_order_changes(history) == ()
    assert judge_sampling.judge_order_repeats(history, anew) == ()
    repeated = [replace(sample, epoch=last.epoch + 5) for sample in own]
    (text,) = texts(judge_sampling.judge_order_changes([*history, *repeated]))
    where = f"epoch {last.epoch + 5}: rank {last.rank} "
    assert text.startswith(f"{where}has the order of epoch {last.epoch} again: {own[0].index}, ")
    one, other = own[:2]
    swapped = changed(changed(anew, one, index=other.index), other, index=one.index)
    for spoiled in (without(anew, *own), without(anew, own[-1]), swapped):
        (text,) = texts(judge_sampling.judge_order_repeats(history, spoiled))
        assert text.startswith(f"epoch {last.epoch}: rank {last.rank} delivered {own[0].index}, ")


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
