"""Properties of the windows' judges: all that is legal passes, any single breach is named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ddp_conformance.framework.history import Record
from ddp_conformance.windows import judge as judge_windows
from ddp_conformance.windows.history import WindowEvent, WindowPart, WindowReader, WindowSample
from hypothesis import given
from hypothesis import strategies as st

from conformance.strategies import any_record, changed, quick, texts, without, world_sizes


@st.composite
def window_runs(draw: st.DrawFn) -> list[Record]:
    """Epochs with a window and a version each, its samples dealt to ranks in any way."""
    world_size, size = draw(st.integers(1, 3)), draw(st.integers(3, 8))
    history: list[Record] = []
    for epoch in range(draw(st.integers(2, 4))):
        for rank in range(world_size):
            history += _epoch_of(rank, epoch, range(rank, size, world_size))
    return history


def _epoch_of(rank: int, epoch: int, share: Sequence[int]) -> list[Record]:
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


def everything_wrong(history: Sequence[Record]) -> dict[str, list[str]]:
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
    data: st.DataObject, history: list[Record], stage: str, **changes: object
) -> tuple[WindowSample, list[Record]]:
    """One sample other than the first of its epoch and rank, and the history with it changed."""
    samples = [
        record
        for record in history
        if isinstance(record, WindowSample) and (record.stage, record.step > 0) == (stage, True)
    ]
    chosen = data.draw(st.sampled_from(samples or [r for r in history if _is(r, stage)]))
    place = history.index(chosen)
    return chosen, [*history[:place], replace(chosen, **changes), *history[place + 1 :]]


def _is(record: Record, stage: str) -> bool:
    return isinstance(record, WindowSample) and record.stage == stage


@quick
@given(window_runs())
def test_windows_that_move_between_epochs_pass(history: list[Record]) -> None:
    assert everything_wrong(history) == {}
    assert judge_windows.judge_same_schedule(history, history) == ()


@quick
@given(window_runs(), st.data())
def test_any_sample_of_another_window_is_named(history: list[Record], data: st.DataObject) -> None:
    sample, history = changed_sample(data, history, "train", window="elsewhere")
    (text,) = everything_wrong(history)["judge_in_force"]
    assert text.startswith(f"epoch {sample.epoch}: rank {sample.rank}, training")
    assert f"sample {sample.index} is of window elsewhere" in text


@quick
@given(window_runs(), st.data())
def test_any_sample_of_another_version_is_named(history: list[Record], data: st.DataObject) -> None:
    sample, history = changed_sample(data, history, "train", version=99)
    text = everything_wrong(history)["judge_counter"][0]
    assert text.startswith(f"epoch {sample.epoch}: rank {sample.rank}, training")
    assert "is of version 99, the counter shows" in text
    assert "judge_all_used" in everything_wrong(history)


@quick
@given(window_runs(), st.data())
def test_any_other_validation_sample_is_named(history: list[Record], data: st.DataObject) -> None:
    _, history = changed_sample(data, history, "val", index=99)
    assert list(everything_wrong(history)) == ["judge_fixed_validation"]


@quick
@given(window_runs(), st.data())
def test_any_rebuild_within_an_epoch_is_named(history: list[Record], data: st.DataObject) -> None:
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
def test_any_object_that_is_kept_is_named(history: list[Record], data: st.DataObject) -> None:
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


@quick
@given(window_runs(), st.data())
def test_any_epoch_on_a_window_that_was_not_meant_is_named(
    history: list[Record], data: st.DataObject
) -> None:
    def meant(epoch: int) -> str:
        return f"days {epoch} to {epoch + 3}"

    assert judge_windows.judge_schedule(history, meant) == ()
    sample, spoiled = changed_sample(data, history, "train", window="elsewhere")
    (text,) = texts(judge_windows.judge_schedule(spoiled, meant))
    assert text.startswith(f"epoch {sample.epoch}: rank {sample.rank}, training, batch ")
    assert text.endswith(f"sample {sample.index} is of elsewhere, meant is {meant(sample.epoch)}")


@quick
@given(window_runs(), st.data())
def test_any_other_window_after_a_sanity_check_is_named(
    history: list[Record], data: st.DataObject
) -> None:
    sample = any_record(data, history, WindowSample)
    where = f"epoch {sample.epoch}: rank {sample.rank}: "
    own = [
        r
        for r in history
        if isinstance(r, WindowSample)
        and (r.rank, r.stage, r.epoch) == (sample.rank, sample.stage, sample.epoch)
    ]
    for spoiled in (changed(history, sample, window="elsewhere"), without(history, *own)):
        (text,) = texts(judge_windows.judge_same_schedule(history, spoiled))
        assert text.startswith(where)
        (text,) = texts(judge_windows.judge_same_schedule(spoiled, history))
        assert text.startswith(where)


@quick
@given(world_sizes, st.data())
def test_any_worker_that_takes_itself_for_another_rank_is_named(
    world_size: int, data: st.DataObject
) -> None:
    history = [
        WindowReader(rank, index, rank, worker)
        for rank in range(world_size)
        for worker in range(data.draw(st.integers(1, 3)))
        for index in range(worker, 6, 3)
    ]
    assert judge_windows.judge_readers(history) == ()
    reader = any_record(data, history, WindowReader)
    (text,) = texts(judge_windows.judge_readers(changed(history, reader, found=9)))
    where = f"worker {reader.worker} of rank {reader.rank} takes itself for rank 9"
    assert text == f"{where}: sample {reader.index}"


def test_runs_that_deliver_nothing_are_no_pass() -> None:
    nothing = ["no training sample was delivered"]
    for judge in (
        judge_windows.judge_in_force,
        judge_windows.judge_fresh,
        judge_windows.judge_counter,
    ):
        assert texts(judge([])) == nothing
    assert texts(judge_windows.judge_schedule([], str)) == nothing
    assert texts(judge_windows.judge_readers([])) == ["no worker read a sample"]
    assert texts(judge_windows.judge_fixed_validation([])) == ["no validation sample was delivered"]
