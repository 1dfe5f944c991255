"""Files that are whole at any moment, and the content of the log."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from ddp_reference.resnet.files import write_whole
from ddp_reference.resnet.images import Batch
from ddp_reference.resnet.text_log import (
    LOG,
    METRICS,
    MODEL,
    TextLoggingCallback,
    describe,
)
from lightning.pytorch import LightningModule, Trainer

MODULE = LightningModule()


def trainer(directory: Path, **metrics: float) -> Trainer:
    """What the callback asks of a trainer, at the end of epoch 1."""
    facts = SimpleNamespace(
        log_dir=str(directory),
        is_global_zero=True,
        global_rank=0,
        world_size=2,
        current_epoch=1,
        max_epochs=3,
        ckpt_path=None,
        checkpoint_callback=None,
        callback_metrics={name: torch.tensor(value) for name, value in metrics.items()},
    )
    return cast(Trainer, facts)


def begun(directory: Path) -> TextLoggingCallback:
    callback = TextLoggingCallback()
    callback.setup(trainer(directory), MODULE, "fit")
    callback.on_train_start(trainer(directory), MODULE)
    return callback


def run_epoch(callback: TextLoggingCallback, directory: Path, **values: float) -> None:
    batch = Batch(torch.zeros(2, 3, 24, 24), torch.zeros(2), torch.zeros(2))
    callback.on_train_batch_start(trainer(directory), MODULE, batch, 0)
    callback.on_train_epoch_end(trainer(directory, **values), MODULE)


def records(directory: Path) -> list[dict[str, object]]:
    read: list[dict[str, object]] = json.loads((directory / METRICS).read_text())
    return read


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_whole(path, "old")

    def disk_full(descriptor: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", disk_full)
    with pytest.raises(OSError, match="disk full"):
        write_whole(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_an_epoch_is_logged_once_with_the_resolution_delivered(tmp_path: Path) -> None:
    run_epoch(begun(tmp_path), tmp_path, val_loss=0.5, train_loss=1.0)
    start, epoch = records(tmp_path)
    assert (start["event"], start["world_size"], start["resumed_from"]) == ("start", 2, None)
    expected = {"event": "epoch", "epoch": 1, "resolution": 24, "train_loss": 1.0, "val_loss": 0.5}
    assert {name: epoch[name] for name in expected} == expected
    assert (epoch["rank"], epoch["pid"]) == (0, os.getpid())
    last = (tmp_path / LOG).read_text().splitlines()[-1]
    assert last.endswith("epoch 1 at 24 pixels: train_loss=1, val_loss=0.5")


def test_an_epoch_whose_batches_came_before_is_not_logged(tmp_path: Path) -> None:
    callback = begun(tmp_path)
    callback.on_train_epoch_end(trainer(tmp_path), MODULE)
    run_epoch(callback, tmp_path, train_loss=1.0)
    callback.on_train_epoch_end(trainer(tmp_path), MODULE)
    assert [record["event"] for record in records(tmp_path)] == ["start", "epoch"]


def test_a_loss_that_is_not_finite_stays_json(tmp_path: Path) -> None:
    run_epoch(begun(tmp_path), tmp_path, train_loss=float("nan"), val_loss=float("inf"))
    assert (records(tmp_path)[-1]["train_loss"], records(tmp_path)[-1]["val_loss"]) == (None, None)
    assert "train_loss=not finite" in (tmp_path / LOG).read_text()


def test_the_end_and_a_test_are_logged(tmp_path: Path) -> None:
    callback = begun(tmp_path)
    callback.on_train_end(trainer(tmp_path), MODULE)
    callback.on_test_end(trainer(tmp_path, test_loss=0.25, val_loss=9.0), MODULE)
    _, end, test = records(tmp_path)
    assert (end["event"], end["best_checkpoint"]) == ("end", "")
    assert (test["event"], test["test_loss"]) == ("test", 0.25)
    assert "val_loss" not in test


def test_the_model_is_described(tmp_path: Path) -> None:
    begun(tmp_path)
    assert (tmp_path / MODEL).read_text() == describe(MODULE)
    module = LightningModule()
    module.layer = torch.nn.BatchNorm1d(3)
    module.layer.bias.requires_grad_(False)
    text = describe(module)
    assert text.startswith("parameters: 3 trained, 3 frozen\nbuffers: 7\n")
    assert "BatchNorm1d(3" in text
