"""The reference's loops call and decide the same on all ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from ddp_conformance import Callback, Case, Subject, parametrize_with_checks
from ddp_conformance.windows.trainer_runs import CaseEnvironment, advice_ignored
from ddp_reference.resnet.data import ImageNetDataModule
from ddp_reference.resnet.images import Batch
from ddp_reference.resnet.make_data import make_data
from ddp_reference.resnet.module import ResNetModule
from ddp_reference.resnet.resolution import ResolutionSchedule, ResolutionScheduleCallback
from ddp_reference.resnet.run_logger import RunLogger
from ddp_reference.resnet.text_log import TextLoggingCallback
from lightning.pytorch import Callback as LightningCallback
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy

if TYPE_CHECKING:
    from ddp_conformance.frontend.pytest_frontend import BoundCheck

SCHEDULE = "0:8,1:12"
EPOCHS = 2


def make_images(case: Case) -> None:
    """Two classes of so many images that the numbers of both splits are odd."""
    make_data(case.directory / "data", classes=2, train=case.size, val=case.size, size=12)
    for split in ("train", "val"):
        next((case.directory / "data" / split).glob("*/*.jpg")).unlink()


class Decisions(LightningCallback):
    """Keeps what each epoch of this rank was decided to be."""

    def __init__(self) -> None:
        self.resolution = 0
        self.epochs: list[dict[str, Any]] = []

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Batch, batch_idx: int
    ) -> None:
        self.resolution = batch.images.shape[-1]

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.epochs.append(
            {
                "lr": trainer.optimizers[0].param_groups[0]["lr"],
                "resolution": self.resolution,
                "stop": trainer.should_stop,
                "best": getattr(trainer.checkpoint_callback, "best_model_path", ""),
                "log_dir": trainer.log_dir,
            }
        )


def resnet_training(case: Case) -> Iterator[dict[str, Any]]:
    """Two epochs of the program's own parts, the decisions at their end."""
    decisions = Decisions()
    logger = RunLogger(case.directory / "runs", "resnet")
    schedule = ResolutionScheduleCallback(ResolutionSchedule.parse(SCHEDULE))
    best = ModelCheckpoint(monitor="val_accuracy", mode="max", save_on_train_epoch_end=True)
    with advice_ignored():
        trainer = Trainer(
            max_epochs=EPOCHS,
            accelerator="cpu",
            devices=case.world_size,
            strategy=DDPStrategy(),
            plugins=[CaseEnvironment(case)],
            callbacks=[schedule, TextLoggingCallback(), best, decisions],
            logger=logger,
            log_every_n_steps=1,
            reload_dataloaders_every_n_epochs=1,
            use_distributed_sampler=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        data = ImageNetDataModule(
            case.directory / "data", batch_size=2, resolution=8, val_resolution=8
        )
        trainer.fit(ResNetModule(2, blocks=(1,), width=2, stem="small"), data)
    logger.close()
    yield from decisions.epochs


@pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec:FutureWarning")
@parametrize_with_checks(
    [Callback(resnet_training, {"decides"}, prepare=make_images)],
    world_size=(1, 2, 3),
    share_ranks=True,
)
def test_reference(subject: Subject, check: BoundCheck) -> None:
    check(subject)
