"""The schedule, and that it reaches the batches of the epoch it is meant for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ddp_reference.resnet.agreement import ConfigError
from ddp_reference.resnet.data import ImageNetDataModule
from ddp_reference.resnet.images import Batch
from ddp_reference.resnet.module import ResNetModule
from ddp_reference.resnet.resolution import ResolutionSchedule, ResolutionScheduleCallback
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer

SCHEDULE = ResolutionSchedule(((0, 16), (1, 24), (3, 32)))

pytestmark = [
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.*"),
]


class Delivered(Callback):
    """Keeps epoch and resolution of every training batch, and of every validation batch."""

    def __init__(self) -> None:
        self.train: list[tuple[int, int]] = []
        self.val: set[int] = set()

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Batch, batch_idx: int
    ) -> None:
        self.train.append((trainer.current_epoch, batch.images.shape[-1]))

    def on_validation_batch_start(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        batch: Batch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        self.val.add(batch.images.shape[-1])


class ChangedTooLate(ResolutionScheduleCallback):
    """The change where it looks natural, and comes after the epoch's iterator."""

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.apply(trainer, trainer.current_epoch)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        pass


def fit(dataset: Path, callback: Callback, **arguments: Any) -> Delivered:
    """Train 4 epochs of 2 batches and return what was delivered."""
    delivered = Delivered()
    defaults = {"reload_dataloaders_every_n_epochs": 1, "max_epochs": 4}
    trainer = Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        callbacks=[callback, delivered],
        **(defaults | arguments),
    )
    module = ResNetModule(3, (1,), width=2, stem="small", example_resolution=16)
    trainer.fit(module, ImageNetDataModule(dataset, batch_size=14, val_resolution=32))
    return delivered


def test_each_epoch_is_delivered_at_its_resolution(dataset: Path) -> None:
    delivered = fit(dataset, ResolutionScheduleCallback(SCHEDULE))
    assert delivered.train == [(e, SCHEDULE.at(e)) for e in range(4) for _ in range(2)]
    assert delivered.val == {32}


def test_a_change_at_epoch_start_comes_one_epoch_late(dataset: Path) -> None:
    delivered = fit(dataset, ChangedTooLate(SCHEDULE))
    assert dict(delivered.train) == {0: 16, 1: 16, 2: 24, 3: 24}


@pytest.mark.parametrize("every", [0, 2])
def test_a_trainer_that_keeps_its_loader_is_refused(dataset: Path, every: int) -> None:
    with pytest.raises(ConfigError, match=f"reload_dataloaders_every_n_epochs=1.* not {every}"):
        fit(dataset, ResolutionScheduleCallback(SCHEDULE), reload_dataloaders_every_n_epochs=every)


def test_a_data_module_without_resolution_is_refused() -> None:
    trainer = Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        reload_dataloaders_every_n_epochs=1,
    )
    trainer.datamodule = LightningDataModule()  # type: ignore[attr-defined]
    callback = ResolutionScheduleCallback(SCHEDULE)
    with pytest.raises(ConfigError, match=r"update_resolution\(\)"):
        callback.setup(trainer, LightningModule(), "fit")
    callback.setup(trainer, LightningModule(), "test")


def test_a_step_holds_until_the_next() -> None:
    assert [SCHEDULE.at(epoch) for epoch in (0, 1, 2, 3, 1000)] == [16, 24, 24, 32, 32]
    assert SCHEDULE.smallest == 16


def test_text_and_schedule_are_equivalent() -> None:
    assert ResolutionSchedule.parse("0:16,1:24,3:32") == SCHEDULE
    assert str(SCHEDULE) == "0:16,1:24,3:32"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1:16", "must begin with epoch 0"),
        ("0:16,2:24,2:32", "the epochs must rise"),
        ("0:16,3:24,2:32", "the epochs must rise"),
        ("0:0", "pixels must be at least 1"),
        ("", "is not EPOCH:PIXELS"),
        ("0:16,", "is not EPOCH:PIXELS"),
        ("0:16:32", "is not EPOCH:PIXELS"),
        ("0:big", "is not EPOCH:PIXELS"),
    ],
)
def test_bad_schedules_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ResolutionSchedule.parse(text)


def test_an_empty_schedule_is_refused() -> None:
    with pytest.raises(ConfigError, match="must begin with epoch 0"):
        ResolutionSchedule(())
