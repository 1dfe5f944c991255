"""Fits that Lightning's Trainer saves and resumes."""

from __future__ import annotations

from typing import Any

import torch
from ddp_conformance import Case, Leg, Watch
from ddp_conformance.windows.trainer_runs import CaseEnvironment, advice_ignored
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor
from torch.utils.data import DataLoader

from conformance.ecosystem.frame.loops import losses_of, optimizer_of, seed_rank
from conformance.ecosystem.frame.models import Net

BATCH = 4


class Fit(LightningModule):
    """Lightning shards the loader and tells its sampler the epoch."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.case = case
        torch.manual_seed(3)
        self.layers = Net()
        seed_rank(case.rank)

    def training_step(self, batch: dict[str, Tensor]) -> Tensor:
        return losses_of(self.layers, batch["index"].tolist()).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return optimizer_of(self.layers)

    def train_dataloader(self) -> DataLoader[Any]:
        workers = self.case.num_workers
        return DataLoader(self.case.dataset, batch_size=BATCH, shuffle=True, num_workers=workers)


class Tell(Callback):
    """Lightning's hooks, in the words of the watch."""

    def __init__(self, watch: Watch, leg: Leg) -> None:
        self.watch, self.leg = watch, leg

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.watch.begin(pl_module)
        self._save_if_asked(trainer)

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: dict[str, Tensor],
        batch_idx: int,
    ) -> None:
        self.watch.step(trainer.current_epoch, batch["index"].tolist())
        self._save_if_asked(trainer)

    def _save_if_asked(self, trainer: Trainer) -> None:
        if trainer.global_step in self.leg.save_at:
            trainer.save_checkpoint(self.leg.save_at[trainer.global_step])


def resumed_fit(case: Case, leg: Leg, watch: Watch) -> None:
    """One leg of whole epochs, on the ranks of the case or alone."""
    module = Fit(case)
    placed: dict[str, Any] = {"devices": 1}
    if torch.distributed.is_initialized():
        placed = {"devices": case.world_size, "strategy": DDPStrategy()}
        placed["plugins"] = [CaseEnvironment(case)]
    with advice_ignored():
        trainer = Trainer(
            accelerator="cpu",
            max_epochs=leg.epochs,
            callbacks=[Tell(watch, leg)],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            **placed,
        )
        trainer.fit(module, ckpt_path=leg.resume, weights_only=False)
        if leg.save is not None:
            trainer.save_checkpoint(leg.save)
    watch.end(module)
