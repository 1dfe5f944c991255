"""Run by torchrun: train on every rank in a different random state, and write down what came.

``python probe.py ARCHIVE OUT`` writes OUT/rank<N>.json.
"""

from __future__ import annotations

import json
import random
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ddp_reference.windows.callbacks import ResampleDataCallback, data_module
from ddp_reference.windows.datamodule import GNNDataModule
from ddp_reference.windows.model import WindowGNN
from ddp_reference.windows.textlog import TextLog
from lightning.pytorch import LightningModule, Trainer

from tests.reference.windows.helpers import FEATURES, Recorder, make_trainer

DATES = ("2024-01-01", "2024-01-12", "2024-01-14", "2024-01-20")


class RankRecorder(Recorder):
    """Keeps squared errors and reported metrics of each epoch as well."""

    def __init__(self) -> None:
        super().__init__()
        self.squared: dict[str, list[list[float]]] = {"train": [], "val": []}
        self.metrics: list[dict[str, str]] = []

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.squared["train"].append([])

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.sanity_checking:
            self.squared["val"].append([])

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._measure("train", pl_module, batch)

    def on_validation_batch_start(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if not trainer.sanity_checking:
            self._measure("val", pl_module, batch)

    def _measure(self, stage: str, model: LightningModule, batch: Any) -> None:
        with torch.no_grad():
            squared = torch.square(model(batch) - batch.y)[~batch.repeated]
        self.squared[stage][-1] += squared.double().tolist()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        names = ("train_loss", "val_loss", "val_rmse")
        self.metrics.append({n: float(trainer.callback_metrics[n]).hex() for n in names})


def fit(
    archive: Path, log: Path, val_end: str, *, workers: int, use_distributed_sampler: bool
) -> dict[str, Any]:
    """Three epochs over odd numbers of samples; everything that this rank saw of them."""
    recorder = RankRecorder()
    data = GNNDataModule(
        archive, "2024-01-01", "2024-01-06", "2024-01-14", val_end, 2, num_workers=workers
    )
    callback = ResampleDataCallback(*DATES, train_window_days=5, val_window_days=3, seed=11)
    trainer = make_trainer(
        [TextLog(log), recorder, callback],
        epochs=3,
        devices=2,
        strategy="ddp",
        use_distributed_sampler=use_distributed_sampler,
    )
    model = WindowGNN(FEATURES, hidden=4)
    trainer.fit(model, datamodule=data)
    return {
        "rank": trainer.global_rank,
        "deliveries": recorder.as_json(),
        "squared": recorder.squared,
        "metrics": recorder.metrics,
        "rebuilds": [asdict(rebuild) for rebuild in data_module(trainer).rebuilds],
        "parameters": [p.tolist() for p in model.parameters()],
    }


def main(archive: Path, out: Path) -> None:
    """Two runs: with an odd number of validation samples, and with fewer than ranks."""
    own = int.from_bytes(random.SystemRandom().randbytes(3))
    random.seed(own)
    np.random.seed(own)
    torch.manual_seed(own)
    uneven = fit(archive, out / "uneven.log", "2024-01-17", workers=1, use_distributed_sampler=True)
    single = fit(
        archive, out / "single.log", "2024-01-14T08:00", workers=0, use_distributed_sampler=False
    )
    text = json.dumps({"uneven": uneven, "single": single})
    (out / f"rank{uneven['rank']}.json").write_text(text)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
