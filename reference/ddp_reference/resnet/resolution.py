"""Progressive resizing: small images first, larger ones later.

Seen in fast.ai's "Training Imagenet in 3 hours for 25 minutes" (2018): early epochs
learn as much from fewer pixels, at a fraction of the time.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from ddp_reference.resnet.agreement import ConfigError, raise_together, require_equal


@dataclass(frozen=True, slots=True)
class ResolutionSchedule:
    """The resolution on which each epoch trains.

    ``steps`` are pairs (first epoch, pixels), the first of them for epoch 0, in rising
    order of epochs. Raises :class:`ConfigError` otherwise.
    """

    steps: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        epochs = [epoch for epoch, _ in self.steps]
        if not epochs or epochs[0] != 0:
            raise ConfigError(f"resolution schedule {self} must begin with epoch 0, as in 0:128")
        if epochs != sorted(set(epochs)):
            raise ConfigError(f"resolution schedule {self}: the epochs must rise")
        if min(pixels for _, pixels in self.steps) < 1:
            raise ConfigError(f"resolution schedule {self}: pixels must be at least 1")

    def __str__(self) -> str:
        return ",".join(f"{epoch}:{pixels}" for epoch, pixels in self.steps)

    @classmethod
    def parse(cls, text: str) -> ResolutionSchedule:
        """Read ``"0:128,10:176,20:224"``. Raises :class:`ConfigError`."""
        try:
            pairs = [step.split(":") for step in text.split(",")]
            steps = tuple((int(epoch), int(pixels)) for epoch, pixels in pairs)
        except ValueError as error:
            raise ConfigError(
                f"resolution schedule {text!r} is not EPOCH:PIXELS,EPOCH:PIXELS,..., "
                "as in 0:128,10:176"
            ) from error
        return cls(steps)

    def at(self, epoch: int) -> int:
        """Pixels a side in ``epoch``; the last step holds for ever."""
        return self.steps[bisect_right(self.steps, epoch, key=lambda step: step[0]) - 1][1]

    @property
    def smallest(self) -> int:
        """The least number of pixels in any epoch."""
        return min(pixels for _, pixels in self.steps)


class ResolutionScheduleCallback(Callback):
    """Has the data module train each epoch on the resolution that the schedule means for it.

    Lightning builds an epoch's loader and its iterator *before* ``on_train_epoch_start``,
    so a change made there shows one epoch late. The change is therefore made at the end
    of the epoch before, and for the first epoch of a run as soon as that is known. It
    needs ``Trainer(reload_dataloaders_every_n_epochs=1)``, or the first loader would
    serve all epochs. All ranks compute the same from the epoch alone; that they hold the
    same schedule is checked in :meth:`setup`.
    """

    def __init__(self, schedule: ResolutionSchedule) -> None:
        self.schedule = schedule

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Set the first epoch's resolution. Raises :class:`ConfigError` on all ranks together."""
        if stage != "fit":
            return
        raise_together(self.misuse(trainer))
        require_equal("the resolution schedule", str(self.schedule))
        self.apply(trainer, 0)

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Set the resolution of the epoch that a resumed run goes on with."""
        progress = checkpoint["loops"]["fit_loop"]["epoch_progress"]
        self.apply(trainer, progress["current"]["processed"])

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Once more: Lightning may find only now that the checkpoint's epoch was over."""
        self.apply(trainer, trainer.current_epoch)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set the next epoch's resolution, before its loader is built."""
        self.apply(trainer, trainer.current_epoch + 1)

    def apply(self, trainer: Trainer, epoch: int) -> None:
        """Tell the data module the resolution of ``epoch``."""
        datamodule = trainer.datamodule  # type: ignore[attr-defined]
        datamodule.update_resolution(self.schedule.at(epoch))

    def misuse(self, trainer: Trainer) -> str | None:
        """What keeps the schedule from taking effect, in a sentence; None if nothing does."""
        if trainer.reload_dataloaders_every_n_epochs != 1:  # type: ignore[attr-defined]
            return (
                "ResolutionScheduleCallback needs Trainer(reload_dataloaders_every_n_epochs=1), "
                f"not {trainer.reload_dataloaders_every_n_epochs}"  # type: ignore[attr-defined]
            )
        if not hasattr(trainer.datamodule, "update_resolution"):  # type: ignore[attr-defined]
            return "ResolutionScheduleCallback needs a data module with update_resolution()"
        return None
