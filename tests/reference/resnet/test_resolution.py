"""The schedule: what it says of each epoch, and what is refused."""

from __future__ import annotations

import pytest
from ddp_reference.resnet.agreement import ConfigError
from ddp_reference.resnet.data import ImageNetDataModule
from ddp_reference.resnet.resolution import ResolutionSchedule, ResolutionScheduleCallback
from lightning.pytorch import LightningDataModule, LightningModule, Trainer

SCHEDULE = ResolutionSchedule(((0, 16), (1, 24), (3, 32)))


@pytest.mark.parametrize(
    ("every", "data", "message"),
    [
        (0, ImageNetDataModule("images"), "reload_dataloaders_every_n_epochs=1.* not 0"),
        (2, ImageNetDataModule("images"), "reload_dataloaders_every_n_epochs=1.* not 2"),
        (1, LightningDataModule(), r"update_resolution\(\)"),
    ],
)
def test_where_a_schedule_would_have_no_effect_it_is_refused(
    every: int, data: LightningDataModule, message: str
) -> None:
    trainer = Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        reload_dataloaders_every_n_epochs=every,
    )
    trainer.datamodule = data  # type: ignore[attr-defined]
    callback = ResolutionScheduleCallback(SCHEDULE)
    with pytest.raises(ConfigError, match=message):
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
        ("0:0", "pixels must be at least 1"),
        ("", "is not EPOCH:PIXELS"),
        ("0:16:32", "is not EPOCH:PIXELS"),
    ],
)
def test_bad_schedules_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ResolutionSchedule.parse(text)


def test_an_empty_schedule_is_refused() -> None:
    with pytest.raises(ConfigError, match="must begin with epoch 0"):
        ResolutionSchedule(())
