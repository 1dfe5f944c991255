"""What several test modules of the windows system need."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ddp_reference.windows.callbacks import WindowCallback
from ddp_reference.windows.datamodule import GNNDataModule
from ddp_reference.windows.model import WindowGNN
from lightning.pytorch import Callback, LightningModule, Trainer

FEATURES = 5


@dataclass(frozen=True)
class Delivery:
    """One sample that reached the model, as the sample itself has it."""

    stage: str
    epoch: int
    sample: int
    bin_name: str
    window: str
    version: int
    rank: int
    worker: int
    repeated: bool


class Recorder(Callback):
    """Keeps every delivery, and every sanity check's apart from them."""

    def __init__(self) -> None:
        self.deliveries: list[Delivery] = []

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._keep("train", trainer, batch)

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        stage = "sanity" if trainer.sanity_checking else "val"
        self._keep(stage, trainer, batch)

    def _keep(self, stage: str, trainer: Trainer, batch: Any) -> None:
        for k in range(batch.num_graphs):
            self.deliveries.append(
                Delivery(
                    stage=stage,
                    epoch=trainer.current_epoch,
                    sample=int(batch.sample_id[k]),
                    bin_name=batch.bin_name[k],
                    window=batch.window_id[k],
                    version=int(batch.version[k]),
                    rank=int(batch.origin[k, 0]),
                    worker=int(batch.origin[k, 1]),
                    repeated=bool(batch.repeated[k]),
                )
            )

    def windows(self, stage: str) -> list[list[str]]:
        """The windows delivered in each epoch that delivered anything."""
        chosen = [d for d in self.deliveries if d.stage == stage]
        epochs = sorted({d.epoch for d in chosen})
        return [sorted({d.window for d in chosen if d.epoch == epoch}) for epoch in epochs]

    def as_json(self) -> list[dict[str, Any]]:
        return [asdict(delivery) for delivery in self.deliveries]


def make_trainer(callbacks: Sequence[Callback], epochs: int, **options: Any) -> Trainer:
    """A quiet single-process trainer."""
    quiet: dict[str, Any] = {
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
        "reload_dataloaders_every_n_epochs": 1,
    }
    return Trainer(max_epochs=epochs, callbacks=[*callbacks], **quiet | options)


def run(
    data: GNNDataModule, callback: WindowCallback, epochs: int, **options: Any
) -> tuple[Recorder, WindowGNN]:
    """Train a fresh model and return what was delivered to it."""
    recorder, model = Recorder(), WindowGNN(FEATURES, hidden=4)
    make_trainer([recorder, callback], epochs, **options).fit(model, datamodule=data)
    return recorder, model


def fields(line: str) -> dict[str, str]:
    """The ``name=value`` pairs of a line of the text log."""
    return dict(_pairs(line))


def _pairs(line: str) -> Iterator[tuple[str, str]]:
    for word in line.split():
        name, found, value = word.partition("=")
        if found:
            yield name, value
