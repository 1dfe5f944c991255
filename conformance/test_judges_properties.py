"""Properties of the judges: all that is legal passes, and any single breach is found and named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ddp_conformance.checks import (
    judge_metrics,
    judge_sampling,
    judge_windows,
    judge_writing,
)
from ddp_conformance.history import (
    Collective,
    Delivered,
    Drawn,
    Draws,
    EpochEnd,
    Expected,
    Measured,
    ReadBack,
    Record,
    Sample,
    Told,
    Wrote,
)
from ddp_conformance.window_history import WindowEvent, WindowPart, WindowRecord, WindowSample
from hypothesis import given, settings
from hypothesis import strategies as st

quick = settings(deadline=None, max_examples=50)  # the machine may be busy

world_sizes = st.integers(1, 5)


def dealt(draw: st.DrawFn, items: Sequence[int], world_size: int) -> list[list[int]]:
    """The items in any order, each to any rank."""
    order = draw(st.permutations(items))
    ranks = st.integers(0, world_size - 1)
    owners = draw(st.lists(ranks, min_size=len(order), max_size=len(order)))
    pairs = list(zip(order, owners, strict=True))
    return [[item for item, owner in pairs if owner == rank] for rank in range(world_size)]


# ---------------------------------------------------------------- sampling


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


# ---------------------------------------------------------------- metrics

values = st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=4)


@quick
@given(values, world_sizes, st.data())
def test_equal_reports_pass_and_any_other_one_is_named(
    right: list[float], world_size: int, data: st.DataObject
) -> None:
    history: list[Record] = [Expected(0, "epoch", tuple(right))]
    history += [Measured(rank, "epoch", tuple(right)) for rank in range(world_size)]
    assert judge_metrics.judge_values(history, 1e-5) == ()
    rank = data.draw(st.integers(0, world_size - 1))
    wrong = list(right)
    wrong[data.draw(st.integers(0, len(right) - 1))] += 1.0
    history[1 + rank] = Measured(rank, "epoch", tuple(wrong))
    texts = [violation.what for violation in judge_metrics.judge_values(history, 1e-5)]
    assert texts[0].startswith(f"epoch: rank {rank} reports ")
    assert len(texts) == (1 if world_size == 1 else 2)


calls = st.lists(st.sampled_from(["sum", "gather", "barrier"]), max_size=6)


@quick
@given(calls, st.integers(2, 5), st.data())
def test_same_calls_pass_and_the_first_other_one_is_named(
    names: list[str], world_size: int, data: st.DataObject
) -> None:
    history = [
        Collective(rank, number, name)
        for rank in range(world_size)
        for number, name in enumerate([*names, "no more collectives"])
    ]
    assert judge_metrics.judge_same_calls(history) == ()
    changed = data.draw(st.sampled_from(history))
    history[history.index(changed)] = replace(changed, what="broadcast")
    (found,) = judge_metrics.judge_same_calls(history)
    assert found.what.startswith(f"collective {changed.number}: ")
    assert f"rank {changed.rank} broadcast" in found.what


# ---------------------------------------------------------------- writing

files = st.dictionaries(st.sampled_from(["a", "b", "sub/c"]), st.integers(0, 3), min_size=1)


@quick
@given(files, st.data())
def test_single_writers_pass_and_any_second_one_is_named(
    writers: dict[str, int], data: st.DataObject
) -> None:
    history = [Wrote(rank, path) for path, rank in writers.items()]
    assert judge_writing.judge_single_writer(history) == ()
    path = data.draw(st.sampled_from(sorted(writers)))
    (found,) = judge_writing.judge_single_writer([*history, Wrote(4, path)])
    assert found.what == f"{path} written by ranks {writers[path]} and 4"


@quick
@given(st.integers(1, 6), st.data())
def test_records_in_any_order_pass_and_any_lost_or_doubled_one_is_named(
    number: int, data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(number)))
    record = data.draw(st.sampled_from(order))
    lost = [other for other in order if other != record]
    assert judge_writing.judge_records([ReadBack(0, tuple(order))], number) == ()
    for numbers, times in ((lost, 0), ([*order, record], 2)):
        (found,) = judge_writing.judge_records([ReadBack(0, tuple(numbers))], number)
        assert found.what == f"record {record} stands there {times} times"


@quick
@given(
    st.lists(st.sampled_from(["log", "runs/a", "b"]), min_size=1, max_size=3),
    st.integers(2, 4),
    st.data(),
)
def test_same_paths_pass_and_any_other_or_missing_one_is_named(
    paths: list[str], world_size: int, data: st.DataObject
) -> None:
    history = [Told(rank, tuple(paths)) for rank in range(world_size)]
    assert judge_writing.judge_paths(history) == ()
    rank = data.draw(st.integers(0, world_size - 1))
    history[rank] = Told(rank, (*paths, "elsewhere"), missing=("elsewhere",))
    different, missing = judge_writing.judge_paths(history)
    assert different.what.startswith("the paths differ: ")
    assert missing.what == f"elsewhere, told by rank {rank}, does not exist"


# ---------------------------------------------------------------- windows


@st.composite
def window_runs(draw: st.DrawFn) -> list[WindowRecord]:
    """Epochs with a window and a version each, its samples dealt to ranks in any way."""
    world_size, size = draw(st.integers(1, 3)), draw(st.integers(3, 8))
    history: list[WindowRecord] = []
    for epoch in range(draw(st.integers(2, 4))):
        for rank in range(world_size):
            history += _epoch_of(rank, epoch, range(rank, size, world_size))
    return history


def _epoch_of(rank: int, epoch: int, share: Sequence[int]) -> list[WindowRecord]:
    version, window = epoch + 1, f"days {epoch} to {epoch + 3}"
    train = [
        WindowSample(rank, "train", epoch, step, index, window, version, window, version, window)
        for step, index in enumerate(share)
    ]
    val = [
        WindowSample(rank, "val", epoch, step, index, "fixed", 1, "fixed", 1, "fixed")
        for step, index in enumerate(share)
    ]
    return [
        WindowEvent(rank, epoch, "train_dataloader()"),
        WindowEvent(rank, epoch, "epoch start"),
        *(WindowEvent(rank, epoch, "batch end") for _ in share),
        WindowPart(rank, "train", epoch, version, "dataset", version),
        *train,
        *val,
    ]


def everything_wrong(history: Sequence[WindowRecord]) -> dict[str, list[str]]:
    """What each judge of windows says, by its name; those that say nothing are left out."""
    judges = (
        judge_windows.judge_in_force,
        judge_windows.judge_fresh,
        judge_windows.judge_counter,
        judge_windows.judge_same_windows,
        judge_windows.judge_undisturbed,
        judge_windows.judge_fixed_validation,
        judge_windows.judge_all_used,
    )
    found = {judge.__name__: [str(v) for v in judge(history)] for judge in judges}
    return {name: texts for name, texts in found.items() if texts}


def changed_sample(
    data: st.DataObject, history: list[WindowRecord], stage: str, **changes: object
) -> tuple[WindowSample, list[WindowRecord]]:
    """One sample other than the first of its epoch and rank, and the history with it changed."""
    samples = [
        record
        for record in history
        if isinstance(record, WindowSample) and (record.stage, record.step > 0) == (stage, True)
    ]
    chosen = data.draw(st.sampled_from(samples or [r for r in history if _is(r, stage)]))
    place = history.index(chosen)
    return chosen, [*history[:place], replace(chosen, **changes), *history[place + 1 :]]


def _is(record: WindowRecord, stage: str) -> bool:
    return isinstance(record, WindowSample) and record.stage == stage


@quick
@given(window_runs())
def test_windows_that_move_between_epochs_pass(history: list[WindowRecord]) -> None:
    assert everything_wrong(history) == {}
    assert judge_windows.judge_same_schedule(history, history) == ()


@quick
@given(window_runs(), st.data())
def test_any_sample_of_another_window_is_named(
    history: list[WindowRecord], data: st.DataObject
) -> None:
    sample, history = changed_sample(data, history, "train", window="elsewhere")
    (text,) = everything_wrong(history)["judge_in_force"]
    assert text.startswith(f"epoch {sample.epoch}: rank {sample.rank}, training")
    assert f"sample {sample.index} is of window elsewhere" in text


@quick
@given(window_runs(), st.data())
def test_any_sample_of_another_version_is_named(
    history: list[WindowRecord], data: st.DataObject
) -> None:
    sample, history = changed_sample(data, history, "train", version=99)
    text = everything_wrong(history)["judge_counter"][0]
    assert text.startswith(f"epoch {sample.epoch}: rank {sample.rank}, training")
    assert "is of version 99, the counter shows" in text
    assert "judge_all_used" in everything_wrong(history)


@quick
@given(window_runs(), st.data())
def test_any_other_validation_sample_is_named(
    history: list[WindowRecord], data: st.DataObject
) -> None:
    _, history = changed_sample(data, history, "val", index=99)
    assert list(everything_wrong(history)) == ["judge_fixed_validation"]


@quick
@given(window_runs(), st.data())
def test_any_rebuild_within_an_epoch_is_named(
    history: list[WindowRecord], data: st.DataObject
) -> None:
    starts = [
        place
        for place, record in enumerate(history)
        if isinstance(record, WindowEvent) and record.what == "epoch start"
    ]
    place = data.draw(st.sampled_from(starts))
    start = history[place]
    assert isinstance(start, WindowEvent)
    history.insert(place + 1, replace(start, what="setup()"))
    found = everything_wrong(history)
    assert list(found) == ["judge_undisturbed"]
    (text,) = found["judge_undisturbed"]
    assert text.startswith(f"epoch {start.epoch}: rank {start.rank}: setup() after 0 of ")


@quick
@given(window_runs(), st.data())
def test_any_object_that_is_kept_is_named(history: list[WindowRecord], data: st.DataObject) -> None:
    later = [
        place
        for place, record in enumerate(history)
        if isinstance(record, WindowPart) and record.epoch > 0
    ]
    place = data.draw(st.sampled_from(later))
    part = history[place]
    assert isinstance(part, WindowPart)
    history[place] = replace(part, identity=part.identity - 1)
    (text,) = everything_wrong(history)["judge_fresh"]
    assert text.startswith(f"epoch {part.epoch}: rank {part.rank}: the train dataset of version ")
