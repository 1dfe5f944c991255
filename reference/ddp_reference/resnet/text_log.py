"""A log for people and the same for programs, written by one rank."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from ddp_reference.resnet.files import write_whole
from ddp_reference.resnet.images import Batch

LOG = "training.log"
METRICS = "metrics.json"
MODEL = "model.txt"


class TextLoggingCallback(Callback):
    """Writes ``training.log``, ``metrics.json`` and ``model.txt`` into ``trainer.log_dir``.

    Global rank 0 writes, in :meth:`write` and :meth:`write_model` and nowhere else.
    Whatever takes all ranks (the log directory, epoch metrics, whose computation pools
    the ranks' states) is fetched by all ranks first: under the guard it would be a
    collective that the others never join. Every file is replaced as a whole, so a
    reader finds complete text and valid JSON at any moment.

    ``metrics.json`` is a list of records in order of time. Each has ``event`` (``start``,
    ``epoch``, ``test``, ``end`` or ``stopped``), ``time`` (UTC, ISO 8601), ``rank`` and
    ``pid`` of the writer; an ``epoch`` record also ``epoch``, ``resolution`` (pixels a
    side of the images that were delivered) and the metrics, null where not finite.
    """

    def __init__(self) -> None:
        self.directory: Path | None = None
        self.resolution: int | None = None
        self.lines: list[str] = []
        self.records: list[dict[str, Any]] = []
        self.began = time.monotonic()

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Learn the log directory, on all ranks: Lightning broadcasts it."""
        directory = trainer.log_dir
        assert directory is not None
        self.directory = Path(directory)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Describe the run and the model."""
        self.began = time.monotonic()
        self.write_model(trainer, pl_module)
        self.write(
            trainer,
            "start",
            f"training starts: {trainer.world_size} ranks, epochs {trainer.current_epoch} to "
            f"{trainer.max_epochs}, resumed from {trainer.ckpt_path}",
            world_size=trainer.world_size,
            epoch=trainer.current_epoch,
            resumed_from=None if trainer.ckpt_path is None else str(trainer.ckpt_path),
        )

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Batch, batch_idx: int
    ) -> None:
        """Keep the resolution that was delivered, whatever was asked for."""
        self.resolution = batch.images.shape[-1]

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the epoch's metrics, of validation too.

        An epoch that a resumed run only closes, because the run before it delivered
        all of its batches, has no metrics here.
        """
        epoch, resolution, self.resolution = trainer.current_epoch, self.resolution, None
        values = scalars(trainer.callback_metrics)
        if resolution is None:
            return
        text = f"epoch {epoch} at {resolution} pixels: {in_words(values)}"
        self.write(trainer, "epoch", text, epoch=epoch, resolution=resolution, **values)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the metrics of a test run."""
        values = scalars(trainer.callback_metrics)
        tested = {name: value for name, value in values.items() if name.startswith("test_")}
        self.write(trainer, "test", f"test: {in_words(tested)}", **tested)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log how long the training took and where the best checkpoint lies."""
        seconds = round(time.monotonic() - self.began, 1)
        best = getattr(trainer.checkpoint_callback, "best_model_path", "")
        text = f"training ends after {seconds} s, best checkpoint {best or 'none'}"
        self.write(trainer, "end", text, seconds=seconds, best_checkpoint=best)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Log why the run stopped. Other ranks may be gone: nothing here waits for them."""
        if self.directory is None:
            return
        reason = f"{type(exception).__name__}: {exception}"
        self.write(trainer, "stopped", f"stopped: {reason}", reason=reason)

    def write(self, trainer: Trainer, event: str, text: str, **values: Any) -> None:
        """Append to the log and to the records, on global rank 0."""
        if not trainer.is_global_zero:
            return
        assert self.directory is not None
        now = datetime.now(UTC).isoformat(timespec="seconds")
        stamp = {"event": event, "time": now, "rank": trainer.global_rank, "pid": os.getpid()}
        self.lines.append(f"{now} {text}\n")
        self.records.append({**stamp, **values})
        write_whole(self.directory / LOG, "".join(self.lines))
        write_whole(self.directory / METRICS, json.dumps(self.records, indent=1, allow_nan=False))

    def write_model(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the model's layers and size, on global rank 0."""
        if not trainer.is_global_zero:
            return
        assert self.directory is not None
        write_whole(self.directory / MODEL, describe(pl_module))


def scalars(metrics: Mapping[str, Tensor]) -> dict[str, float | None]:
    """Metrics by name as JSON can carry them: a value that is not finite becomes null."""
    values = {name: float(value) for name, value in sorted(metrics.items())}
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def in_words(values: Mapping[str, float | None]) -> str:
    """``name=value`` of each metric, for the log."""
    return ", ".join(
        f"{name}={'not finite' if value is None else format(value, '.6g')}"
        for name, value in values.items()
    )


def describe(module: LightningModule) -> str:
    """The layers of a module and how many parameters and buffer elements it has."""
    trained = sum(p.numel() for p in module.parameters() if p.requires_grad)
    frozen = sum(p.numel() for p in module.parameters() if not p.requires_grad)
    buffers = sum(b.numel() for b in module.buffers())
    return f"parameters: {trained} trained, {frozen} frozen\nbuffers: {buffers}\n\n{module}\n"
