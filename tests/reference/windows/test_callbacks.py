"""What the callbacks refuse, and that windows go on after a resumption and where few epochs
validate; what `make conformance` checks of them is not repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from ddp_reference.windows.callbacks import (
    ResampleDataCallback,
    SequentialDataCallback,
    WindowCallback,
)
from ddp_reference.windows.datamodule import GNNDataModule
from ddp_reference.windows.model import WindowGNN
from lightning.pytorch import LightningDataModule
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.demos.boring_classes import BoringDataModule

from tests.reference.windows.helpers import (
    FEATURES,
    Recorder,
    make_trainer,
    run,
)
from tests.reference.windows.marks import LIGHTNING_WARNINGS

pytestmark = LIGHTNING_WARNINGS

DATES = ("2024-01-01", "2024-01-11", "2024-01-14", "2024-01-20")


def resample(**options: Any) -> ResampleDataCallback:
    lengths = {"train_window_days": 3, "val_window_days": 2}
    return ResampleDataCallback(*DATES, **lengths | options)


def make(archive: Path, **options: Any) -> GNNDataModule:
    dates = ("2024-01-01", "2024-01-04", "2024-01-14", "2024-01-16")
    return GNNDataModule(archive, *dates, batch_size=4, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train_window_days": 11}, "training window of 11 days is longer than the training dates"),
        ({"val_window_days": 7}, "a validation window of 7 days is longer than the validation"),
        ({"train_window_days": 0}, "training window days is 0; at least 1"),
        ({"seq_stride_days": 0}, "seq_stride_days is 0; at least 1"),
        ({"mode": "shuffle"}, "mode is 'shuffle'; choose one of random, sequential"),
    ],
)
def test_wrong_numbers_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resample(**options)


@pytest.mark.parametrize(
    ("dates", "message"),
    [
        (("2024-01-11", "2024-01-01", *DATES[2:]), "training dates are out of order"),
        ((*DATES[:2], "2024-01-20", "2024-01-20"), "validation dates are out of order"),
        ((*DATES[:2], "2024-01-10", "2024-01-20"), "overlap; end one where the other starts"),
    ],
)
def test_wrong_dates_are_named(dates: tuple[str, str, str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ResampleDataCallback(*dates, train_window_days=1, val_window_days=1)


def test_the_sequential_callback_checks_its_dates_too() -> None:
    with pytest.raises(ValueError, match="training window of 14 days is longer"):
        SequentialDataCallback("2024-01-01", "2024-01-14")
    with pytest.raises(ValueError, match="stride_days is 0"):
        SequentialDataCallback("2024-01-01", "2024-01-31", stride_days=0)


def test_what_would_go_wrong_later_is_refused_before_the_first_epoch(archive: Path) -> None:
    with pytest.raises(ValueError, match="reload_dataloaders_every_n_epochs=1"):
        run(make(archive), resample(), 1, reload_dataloaders_every_n_epochs=0)
    with pytest.raises(ValueError, match=r"training dates .* leave the archive, which covers"):
        run(make(archive), SequentialDataCallback("2023-12-31", "2024-01-11", 3), 1)
    boring: LightningDataModule = BoringDataModule()
    with pytest.raises(ValueError, match="data module is BoringDataModule"):
        make_trainer([resample()], 1).fit(WindowGNN(FEATURES), datamodule=boring)


def test_every_announced_validation_window_is_used(archive: Path) -> None:
    callback = resample(mode="sequential", resample_val=True)
    recorder, _ = run(make(archive), callback, epochs=6, check_val_every_n_epoch=2)
    val = [d for d in recorder.deliveries if d.stage == "val"]
    assert [{d.version for d in val if d.epoch == epoch} for epoch in (1, 3, 5)] == [{1}, {2}, {3}]


def train_order(recorder: Recorder) -> list[tuple[int, str, int]]:
    return [(d.epoch, d.bin_name, d.version) for d in recorder.deliveries if d.stage == "train"]


def random_both() -> ResampleDataCallback:
    return resample(resample_val=True)


def sliding() -> SequentialDataCallback:
    return SequentialDataCallback("2024-01-01", "2024-01-07", 3, 2)


@pytest.mark.parametrize(
    ("make_callback", "num_workers", "at_epoch_end"),
    [(random_both, 1, True), (random_both, 0, False), (sliding, 0, True), (sliding, 1, False)],
)
def test_a_resumed_run_goes_on_as_if_uninterrupted(
    archive: Path,
    tmp_path: Path,
    make_callback: Callable[[], WindowCallback],
    num_workers: int,
    at_epoch_end: bool,
) -> None:
    def fit(folder: Path, epochs: int, resume: Path | None) -> tuple[Recorder, WindowGNN]:
        torch.manual_seed(3)
        recorder, model = Recorder(), WindowGNN(FEATURES, hidden=4)
        keep = ModelCheckpoint(folder, "last", save_on_train_epoch_end=at_epoch_end)
        trainer = make_trainer([recorder, make_callback(), keep], epochs, enable_checkpointing=True)
        trainer.fit(model, datamodule=make(archive, num_workers=num_workers), ckpt_path=resume)
        return recorder, model

    parts = tmp_path / "parts"
    whole, whole_model = fit(tmp_path / "whole", 4, None)
    first, _ = fit(parts, 2, None)
    second, resumed_model = fit(parts, 4, parts / "last.ckpt")
    assert train_order(first) + train_order(second) == train_order(whole)
    assert first.windows("val") + second.windows("val") == whole.windows("val")
    for name, value in whole_model.state_dict().items():
        assert torch.equal(value, resumed_model.state_dict()[name]), name
