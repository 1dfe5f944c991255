"""The judges of moving windows on hand-made histories."""

from __future__ import annotations

from typing import Any

from ddp_conformance.framework.history import Record
from ddp_conformance.windows import judge
from ddp_conformance.windows.history import WindowEvent, WindowPart, WindowReader, WindowSample


def sample(epoch: int = 0, version: int = 1, rank: int = 0, **changed: Any) -> WindowSample:
    """A sample of the window that has the name of its version, announced as such."""
    window = f"w{version}"
    plain: dict[str, Any] = {
        "stage": "train",
        "step": 0,
        "index": 0,
        "window": window,
        "announced_window": window,
        "announced_version": version,
        "token": f"{rank}-{version}",
    }
    return WindowSample(rank=rank, epoch=epoch, version=version, **plain | changed)


GOOD: list[Record] = [
    sample(epoch, epoch + 1, rank, stage=stage)
    for rank in (0, 1)
    for epoch in (0, 1, 2)
    for stage in ("train", "val")
]


def words(found: tuple[Any, ...]) -> list[str]:
    return [str(violation) for violation in found]


def test_a_sound_history_passes() -> None:
    for judged in (
        judge.judge_in_force(GOOD),
        judge.judge_fresh(GOOD),
        judge.judge_counter(GOOD),
        judge.judge_same_windows(GOOD),
        judge.judge_undisturbed(GOOD),
        judge.judge_all_used(GOOD),
        judge.judge_same_schedule(GOOD, GOOD),
        judge.judge_schedule(GOOD, lambda epoch: f"w{epoch + 1}"),
    ):
        assert judged == ()


def test_a_stale_sample_is_named_once_for_each_rank_and_epoch() -> None:
    late = [sample(1, 2, rank=1, worker=0, window="w1", index=i) for i in (3, 4)]
    assert words(judge.judge_in_force(late)) == [
        "epoch 1: rank 1 worker 0, training, batch 0: sample 3 is of window w1, in force is w2"
    ]


def test_what_is_announced_within_an_epoch_does_not_count_for_it() -> None:
    history = [sample(), sample(step=1, announced_window="w2")]
    assert judge.judge_in_force(history) == ()
    assert len(judge.judge_in_force([*history, sample(step=2, window="w2")])) == 1


def test_nothing_to_judge_is_a_violation() -> None:
    assert words(judge.judge_fresh([])) == ["no training sample was delivered"]
    assert words(judge.judge_fresh([sample()])) == [
        "the version of the training data never changed"
    ]
    assert words(judge.judge_fixed_validation([])) == ["no validation sample was delivered"]


def test_a_counter_that_moves_alone_is_distinguished_from_one_that_stays() -> None:
    stayed = [sample(0), sample(1, announced_version=2), sample(2, announced_version=3)]
    assert words(judge.judge_fresh(stayed)) == [
        "all training samples are of version 1, while the counter went from 1 to 3"
    ]


def test_a_kept_object_is_named() -> None:
    parts = [
        WindowPart(0, "train", 0, 1, "dataset", 0),
        WindowPart(0, "train", 1, 1, "dataset", 0),
        WindowPart(0, "train", 2, 2, "dataset", 0),
        WindowPart(1, "train", 2, 2, "dataset", 0),
    ]
    assert words(judge.judge_fresh([*GOOD, *parts])) == [
        "epoch 2: rank 0: the train dataset of version 2 is the object of version 1"
    ]


def test_a_kept_token_is_named() -> None:
    history = [sample(0, 1, token="t"), sample(1, 2, token="t"), sample(2, 3, token="t")]
    assert words(judge.judge_fresh(history)) == [
        "epoch 1: rank 0, training, batch 0: sample 0 of version 2 has the token of version 1"
    ]


def test_a_wrong_counter_is_named() -> None:
    (found,) = judge.judge_counter([sample(1, 2, announced_version=3)])
    assert str(found).endswith("sample 0 is of version 2, the counter shows 3")


def test_a_version_of_two_builds_is_named() -> None:
    history = [sample(), sample(1, window="w9", token="other")]
    assert words(judge.judge_counter(history)) == [
        "rank 0: train version 1 stands for 2 builds, of window w1, w9"
    ]


def test_windows_that_differ_between_ranks_are_named() -> None:
    history = [sample(), sample(rank=1, window="w5")]
    assert words(judge.judge_same_windows(history)) == [
        "epoch 0: delivered for training: w1 on rank 0, w5 on rank 1"
    ]


def test_a_rank_without_samples_is_no_other_window() -> None:
    assert judge.judge_same_windows([sample(rank=1), sample(stage="val")]) == ()


def events(*names: Any) -> list[Record]:
    return [WindowEvent(0, 0, name) for name in names]


def test_a_rebuild_within_an_epoch_is_named() -> None:
    inside = events("epoch start", "batch start", "batch end", "setup()", "batch start")
    assert words(judge.judge_undisturbed([*inside, *events("batch end")])) == [
        "epoch 0: rank 0: setup() after 1 of 2 batches"
    ]


def test_a_rebuild_around_an_epoch_passes() -> None:
    before = events("setup()", "train_dataloader()", "epoch start", "batch start", "batch end")
    assert judge.judge_undisturbed([*before, *events("train_dataloader()", "setup()")]) == ()


def test_validation_that_moves_is_named() -> None:
    history = [sample(e, 1, stage="val", window=w) for e, w in enumerate(("a", "a", "b"))]
    assert words(judge.judge_fixed_validation(history)) == [
        "epoch 2: validation has sample 0 of window a 0 times, epoch 0 had it 1 times"
    ]


def test_repeated_samples_do_not_count_in_validation() -> None:
    twice = [sample(stage="val"), sample(1, stage="val"), sample(1, stage="val", repeated=True)]
    assert judge.judge_fixed_validation(twice) == ()


def test_a_version_that_was_passed_over_is_named() -> None:
    history = [sample(0, 1, stage="val"), sample(1, 3, stage="val")]
    assert words(judge.judge_all_used(history)) == ["version 2 was never used in validation"]


def test_an_effect_of_the_sanity_check_is_named() -> None:
    without = [sample(stage="val")]
    after = [sample(stage="sanity"), sample(0, 2, stage="val")]
    assert words(judge.judge_same_schedule(without, after)) == [
        "epoch 0: rank 0: validation on w2 (version 2) after a sanity check, "
        "on w1 (version 1) without"
    ]


def test_a_late_effect_is_named() -> None:
    (found,) = judge.judge_schedule([sample(1, 1)], lambda epoch: f"w{epoch + 1}")
    assert str(found).endswith("sample 0 is of w1, meant is w2")


def test_workers_that_take_themselves_for_another_rank_are_named_once() -> None:
    found = judge.judge_readers(
        [WindowReader(0, 0, 0, 0), WindowReader(1, 3, 0, 1), WindowReader(1, 5, 0, 0)]
    )
    assert words(found) == ["worker 1 of rank 1 takes itself for rank 0: sample 3"]


def test_samples_that_no_worker_read_are_no_pass() -> None:
    assert words(judge.judge_readers([WindowReader(0, 0, 0, -1)])) == ["no worker read a sample"]
