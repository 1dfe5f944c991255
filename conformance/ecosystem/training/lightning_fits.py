"""Fits of Lightning's Trainer, with what its callbacks decide."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from ddp_conformance import Case
from ddp_conformance.windows.trainer_runs import CaseEnvironment, advice_ignored
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn
from torch.utils.data import DataLoader

BATCH = 3


class Drifting(LightningModule):
    """A model whose loss falls on rank 0 and grows on the others, as it may where ranks are few."""

    def __init__(self, case: Case, *, sync: bool) -> None:
        super().__init__()
        self.case, self.sync = case, sync
        self.layer = nn.Linear(1, 1)

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        loss: Tensor = self.layer(batch["index"].float()[:, None]).square().mean()
        return loss

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        epoch = float(self.current_epoch)
        loss = 9.0 - epoch if self.case.rank == 0 else epoch
        self.log("loss", torch.tensor(loss), sync_dist=self.sync)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.001)


class Decisions(EarlyStopping):
    """Early stopping that also notes what has been decided when an epoch is over."""

    def __init__(self, best: ModelCheckpoint) -> None:
        super().__init__("loss", patience=2)
        self.best = best
        self.epochs: list[dict[str, Any]] = []

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_validation_end(trainer, pl_module)
        self.epochs.append(
            {"stop": trainer.should_stop, "best": Path(self.best.best_model_path).name}
        )


def fitted(case: Case, *, sync: bool) -> Iterator[dict[str, Any]]:
    """Up to five epochs with the best two checkpoints kept."""
    best = ModelCheckpoint(case.directory, monitor="loss", save_top_k=2)
    decisions = Decisions(best)
    with advice_ignored():
        trainer = Trainer(
            max_epochs=5,
            accelerator="cpu",
            devices=case.world_size,
            strategy=DDPStrategy(),
            plugins=[CaseEnvironment(case)],
            callbacks=[best, decisions],
            logger=False,
            num_sanity_val_steps=0,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        data = DataLoader(case.dataset, BATCH)
        trainer.fit(Drifting(case, sync=sync), data, data)
    yield from decisions.epochs
