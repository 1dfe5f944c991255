"""One rank of a run that keeps a journal, started by torchrun in test_program.

``ranks.py JOURNALS [ARGUMENTS OF THE PROGRAM...]`` trains as the program does and
writes what this rank saw to ``JOURNALS/rank<N>.json``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ddp_reference.resnet.agreement import (
    ConfigError,
    from_rank_zero,
    raise_together,
    rank_and_world_size,
    require_equal,
)
from ddp_reference.resnet.config import Settings, parse
from ddp_reference.resnet.images import Batch
from ddp_reference.resnet.metrics import StageMetrics
from ddp_reference.resnet.module import ResNetModule
from ddp_reference.resnet.run_logger import RunLogger
from ddp_reference.resnet.train import build_datamodule, build_module, build_trainer, leave_gloo
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

CHANGES = {"os.mkdir": 0, "os.rename": 1, "os.remove": 0}
"""Audit events that change the file system, and which argument is the path."""


class WriteSpy:
    """Keeps the paths below ``root`` that this process creates, writes, renames or removes."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self.paths: list[str] = []
        sys.addaudithook(self.hear)

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+"):
            self.keep(arguments[0])
        elif event in CHANGES:
            self.keep(arguments[CHANGES[event]])

    def keep(self, path: object) -> None:
        if str(path).startswith(self.root):
            self.paths.append(str(path))


class Journal(Callback):
    """What this rank was given and what it decided, epoch by epoch."""

    def __init__(self) -> None:
        self.train: list[tuple[int, int, list[int]]] = []
        self.val: dict[int, list[list[int]]] = {}
        self.rates: list[float] = []
        self.metrics: list[dict[str, str]] = []

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Batch, batch_idx: int
    ) -> None:
        self.train.append((trainer.current_epoch, batch.images.shape[-1], batch.indices.tolist()))
        self.rates.append(trainer.optimizers[0].param_groups[0]["lr"])

    def on_validation_batch_start(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        batch: Batch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if not trainer.sanity_checking:
            self.val.setdefault(trainer.current_epoch, []).append(batch.indices.tolist())

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        values = sorted(trainer.callback_metrics.items())
        self.metrics.append({name: float(value).hex() for name, value in values})


def losses_kept(module: ResNetModule) -> dict[int, list[float]]:
    """Have a module keep the loss of each training sample, by epoch."""
    kept: dict[int, list[float]] = {}
    measure = module.measure

    def spy(batch: Batch, metrics: StageMetrics) -> Tensor:
        losses = measure(batch, metrics)
        if metrics is module.train_metrics:
            kept.setdefault(module.current_epoch, []).extend(losses.tolist())
        return losses

    module.measure = spy  # type: ignore[method-assign]
    return kept


def problem_of(call: Callable[[], object]) -> str:
    """The text of the ``ConfigError`` that ``call`` raises."""
    try:
        call()
    except ConfigError as error:
        return str(error)
    return "no error"


def fail_on_rank_zero() -> str:
    rank, _ = rank_and_world_size()
    raise ConfigError(f"raised on rank {rank}")


def agreements() -> dict[str, object]:
    """The functions of ``agreement``, on ranks that differ."""
    rank, _ = rank_and_world_size()
    return {
        "chosen": from_rank_zero(lambda: f"by {rank}"),
        "failed": problem_of(lambda: from_rank_zero(fail_on_rank_zero)),
        "problem": problem_of(lambda: raise_together("of rank 1" if rank == 1 else None)),
        "different": problem_of(lambda: require_equal("the rank", str(rank))),
    }


def train(settings: Settings) -> dict[str, object]:
    """Fit as the program does and return this rank's journal."""
    spy, journal = WriteSpy(settings.log_dir), Journal()
    logger = RunLogger(settings.log_dir, settings.name)
    trainer = build_trainer(settings, logger)
    trainer.callbacks.insert(0, journal)  # type: ignore[attr-defined]
    module = build_module(settings)
    losses = losses_kept(module)
    trainer.fit(module, build_datamodule(settings), ckpt_path=settings.resume)
    logger.close()
    (checkpoints,) = trainer.checkpoint_callbacks
    return {
        "log_dir": logger.log_dir,
        "best": checkpoints.best_model_path,  # type: ignore[attr-defined]
        "train": journal.train,
        "val": journal.val,
        "rates": journal.rates,
        "metrics": journal.metrics,
        "losses": losses,
        "written": spy.paths,
    }


def main(journals: str, *arguments: str) -> None:
    """Train, then try the agreements on the group that the trainer has left."""
    document = train(parse(arguments)) | agreements()
    rank, _ = rank_and_world_size()
    leave_gloo()
    Path(journals, f"rank{rank}.json").write_text(json.dumps(document))


if __name__ == "__main__":
    main(*sys.argv[1:])
