"""The model's metrics against a float64 value over the samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from ddp_reference.windows.callbacks import SequentialDataCallback
from ddp_reference.windows.datamodule import GNNDataModule
from ddp_reference.windows.model import WindowGNN
from ddp_reference.windows.textlog import TextLog
from lightning.pytorch import LightningModule, Trainer

from tests.reference.windows.helpers import (
    FEATURES,
    Recorder,
    fields,
    make_trainer,
)
from tests.reference.windows.marks import LIGHTNING_WARNINGS

pytestmark = LIGHTNING_WARNINGS


class Errors(Recorder):
    """Squared error of each training graph, as the step saw it."""

    def __init__(self) -> None:
        super().__init__()
        self.squared: list[float] = []

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        with torch.no_grad():
            self.squared += torch.square(pl_module(batch) - batch.y).double().tolist()


def make(archive: Path) -> GNNDataModule:
    dates = ("2024-01-01", "2024-01-04", "2024-01-14", "2024-01-16")
    return GNNDataModule(archive, *dates, batch_size=4)


def slide() -> SequentialDataCallback:
    return SequentialDataCallback("2024-01-01", "2024-01-07", 3)


def test_metrics_weight_every_graph_alike(archive: Path) -> None:
    # 9 training graphs in batches of 4, 4 and 1, with different numbers of nodes.
    errors, model = Errors(), WindowGNN(FEATURES, hidden=4)
    data = make(archive)
    trainer = make_trainer([errors, slide()], 1)
    trainer.fit(model, datamodule=data)
    assert len(errors.squared) == 9
    metrics = trainer.callback_metrics
    assert float(metrics["train_loss"]) == pytest.approx(sum(errors.squared) / 9, rel=1e-6)
    with torch.no_grad():
        # Out of the trainer, ``model`` is as it was at the end of the epoch.
        squared = torch.cat([torch.square(model(b) - b.y).double() for b in data.val_dataloader()])
    assert float(metrics["val_loss"]) == pytest.approx(float(squared.mean()), rel=1e-6)
    assert float(metrics["val_rmse"]) == pytest.approx(float(squared.mean().sqrt()), rel=1e-6)


def test_repeated_samples_are_left_out_of_metrics(archive: Path) -> None:
    data = make(archive)
    data.setup("fit")
    batch = next(iter(data.val_dataloader()))
    batch.repeated = torch.tensor([False, True, False, True])
    model = WindowGNN(FEATURES, hidden=4)
    model.validation_step(batch, 0)
    with torch.no_grad():
        counted = torch.square(model(batch) - batch.y).double()[[0, 2]]
    assert float(model.val_loss.compute()) == pytest.approx(float(counted.mean()))
    assert float(model.val_rmse.compute()) == pytest.approx(float(counted.mean().sqrt()))


def test_the_model_has_no_buffers() -> None:
    # DDP would broadcast them per batch, and validation batches differ in number by rank.
    assert list(WindowGNN(FEATURES).buffers()) == []


def test_the_loss_goes_down(archive: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    log = TextLog(tmp_path / "deep" / "train.log")
    make_trainer([log, slide()], 8).fit(WindowGNN(FEATURES), datamodule=make(archive))
    lines = log.path.read_text().splitlines()
    assert lines[0] == "start epoch=0 ranks=1"
    assert lines[-1] == "end epoch=8"
    epochs = [fields(line) for line in lines[1:-1]]
    assert [int(epoch["epoch"]) for epoch in epochs] == list(range(8))
    assert float(epochs[-1]["train_loss"]) < float(epochs[0]["train_loss"])
    assert float(epochs[-1]["val_loss"]) < float(epochs[0]["val_loss"])
    assert [epoch["train_version"] for epoch in epochs] == [str(k) for k in range(1, 9)]
    assert epochs[1]["train_window"] == "2024-01-02T00:00/2024-01-05T00:00"


def test_the_log_shows_why_a_run_ended(archive: Path, tmp_path: Path) -> None:
    class Broken(WindowGNN):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            raise FloatingPointError("loss is nan")

    log = TextLog(tmp_path / "train.log")
    with pytest.raises(FloatingPointError):
        make_trainer([log, slide()], 1).fit(Broken(FEATURES), datamodule=make(archive))
    assert log.path.read_text() == "failed FloatingPointError('loss is nan')\n"
