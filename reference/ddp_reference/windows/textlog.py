"""A log in plain text that one rank writes."""

from __future__ import annotations

from pathlib import Path

from lightning.pytorch import Callback, LightningModule, Trainer

from ddp_reference.windows.callbacks import data_module


class TextLog(Callback):
    """One line for the start, each epoch and the end, appended by rank 0 alone.

    Put it first among the callbacks. ``trainer.callback_metrics`` is a collective the first
    time that it is read after an epoch, because metrics are pooled then: all ranks must read
    it, in the same place, and only then may one of them go on alone.

    Args:
        path: the file; equal on all ranks. A resumed run appends to it.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._epoch_data = ""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the start of the run. ``on_fit_start`` comes before a resume has its epoch."""
        self._write(trainer, f"start epoch={trainer.current_epoch} ranks={trainer.world_size}")

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep what this epoch runs on: at its end the windows have moved."""
        data = data_module(trainer)
        self._epoch_data = (
            f"train_window={data.train.window.id} train_version={data.train_version} "
            f"val_window={data.val.window.id} val_version={data.val_version}"
        )

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write windows and metrics of the epoch."""
        metrics = self._metrics(trainer)
        self._write(trainer, f"epoch={trainer.current_epoch} {self._epoch_data} {metrics}")

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the end of the run."""
        self._write(trainer, f"end epoch={trainer.current_epoch}")

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Write what ended the run."""
        self._write(trainer, f"failed {exception!r}")

    def _metrics(self, trainer: Trainer) -> str:
        metrics = trainer.callback_metrics
        names = sorted(name for name in metrics if name.startswith(("train_", "val_")))
        return " ".join(f"{name}={float(metrics[name]):.6f}" for name in names)

    def _write(self, trainer: Trainer, line: str) -> None:
        if not trainer.is_global_zero:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
