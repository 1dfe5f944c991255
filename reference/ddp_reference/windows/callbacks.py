"""Callbacks that move the windows between epochs.

All of them act in ``on_train_epoch_end``, the one hook between the last batch of an epoch
and the next loader. ``on_train_epoch_start`` is too late, since loader and iterator exist
by then, and ``on_validation_epoch_end`` also fires in the Trainer's sanity check.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Literal

from lightning.pytorch import Callback, LightningModule, Trainer

from ddp_reference.windows.archive import archive_span
from ddp_reference.windows.datamodule import GNNDataModule
from ddp_reference.windows.window import (
    DateLike,
    DateWindow,
    first_window,
    random_window,
    slide_window,
)

Mode = Literal["random", "sequential"]
MODES: tuple[Mode, ...] = ("random", "sequential")


class WindowCallback(Callback):
    """What the two callbacks share: when a window moves, and what must hold for that."""

    spans: dict[str, DateWindow]
    """The spans of dates in which windows may lie, by the window's name."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse what would fail, or silently train on old data, epochs later.

        Raises:
            ValueError: no GNNDataModule, loaders that are not reloaded, or dates that the
                archive does not cover.
        """
        if stage != "fit":
            return
        data = data_module(trainer)
        # A connector of the Trainer sets this attribute, where mypy does not see it.
        reload_every = trainer.reload_dataloaders_every_n_epochs  # type: ignore[attr-defined]
        if reload_every != 1:
            raise ValueError(
                f"reload_dataloaders_every_n_epochs is {reload_every}; windows move in every "
                "epoch, so give the Trainer reload_dataloaders_every_n_epochs=1"
            )
        covered = archive_span(data.root)
        for name, span in self.spans.items():
            check_covered(span, covered, name)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the windows of the next epoch in force."""
        data = data_module(trainer)
        window = self.next_train_window(data)
        data.set_train_window(window.start, window.end)
        self.advance_validation(data)

    @abstractmethod
    def next_train_window(self, data: GNNDataModule) -> DateWindow:
        """The training window that follows the one in force; the same on all ranks."""

    def advance_validation(self, data: GNNDataModule) -> None:
        """Move the validation window, if it moves at all."""


class ResampleDataCallback(WindowCallback):
    """Pick a new training window in each epoch, at random or one after the other.

    The first epoch uses the window that the data module was made with;
    ``first_train_window()`` gives one that fits. Ranks agree without talking, because the
    pick is a function of ``seed`` and the version of the data.

    Args:
        train_start_date: first day where training windows may lie.
        train_end_date: first day where they may not.
        val_start_date: first day where validation windows may lie.
        val_end_date: first day where they may not.
        train_window_days: length of a training window.
        val_window_days: length of a validation window.
        mode: ``random``, or ``sequential`` with a start over at the end of the dates.
        resample_val: move the validation window too, after each validation. Off, all epochs
            are validated on the same data and their losses compare.
        seq_stride_days: step of sequential windows.
        seed: fixes random windows; equal on all ranks.

    Raises:
        ValueError: dates out of order, windows longer than their dates, training and
            validation dates that overlap, or a number below 1.
    """

    def __init__(
        self,
        train_start_date: DateLike,
        train_end_date: DateLike,
        val_start_date: DateLike,
        val_end_date: DateLike,
        train_window_days: int = 14,
        val_window_days: int = 3,
        mode: Mode = "random",
        resample_val: bool = False,
        seq_stride_days: int = 1,
        *,
        seed: int = 42,
    ) -> None:
        if mode not in MODES:
            raise ValueError(f"mode is {mode!r}; choose one of {', '.join(MODES)}")
        self.spans = {
            "training": DateWindow.of(train_start_date, train_end_date, "training"),
            "validation": DateWindow.of(val_start_date, val_end_date, "validation"),
        }
        self.train_window_days = train_window_days
        self.val_window_days = val_window_days
        self.mode = mode
        self.resample_val = resample_val
        self.seq_stride_days = seq_stride_days
        self.seed = seed
        self._val_window_used = False
        self._check_date_ranges()

    def _check_date_ranges(self) -> None:
        check_fits(self.spans["training"], self.train_window_days, "training")
        check_fits(self.spans["validation"], self.val_window_days, "validation")
        check_positive(self.seq_stride_days, "seq_stride_days")
        check_disjoint(self.spans["training"], self.spans["validation"])

    def first_train_window(self) -> DateWindow:
        """A window to make the data module with."""
        span, days = self.spans["training"], self.train_window_days
        if self.mode == "random":
            return random_window(span, days, seed=self.seed, draw=0)
        return first_window(span, days)

    def next_train_window(self, data: GNNDataModule) -> DateWindow:
        """The pick that follows the version in force."""
        span, days = self.spans["training"], self.train_window_days
        return self._next(span, days, data.train.window, data.train_version)

    def next_val_window(self, data: GNNDataModule) -> DateWindow:
        """The pick that follows the validation version in force."""
        span, days = self.spans["validation"], self.val_window_days
        return self._next(span, days, data.val.window, data.val_version)

    def _next(self, span: DateWindow, days: int, current: DateWindow, version: int) -> DateWindow:
        if self.mode == "random":
            return random_window(span, days, seed=self.seed, draw=version)
        return slide_window(span, current, days, stride_days=self.seq_stride_days)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note that the validation window in force was used; a sanity check does not count."""
        if not trainer.sanity_checking:
            self._val_window_used = True

    def advance_validation(self, data: GNNDataModule) -> None:
        """Move the validation window if asked to, and only once the old one was used.

        With ``check_val_every_n_epoch`` above 1, most epochs end without a validation.
        """
        if self.resample_val and self._val_window_used:
            window = self.next_val_window(data)
            data.set_val_window(window.start, window.end)
            self._val_window_used = False

    def state_dict(self) -> dict[str, Any]:
        """What the data module's versions do not tell."""
        return {"val_window_used": self._val_window_used}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the state of a checkpoint."""
        self._val_window_used = state_dict["val_window_used"]


class SequentialDataCallback(WindowCallback):
    """Slide the training window by a stride after each epoch, and start over at the end.

    The slide starts from the window in force, so it needs no state, and a resume goes on
    where it stopped. The validation window stays.

    Args:
        start_date: first day where windows may lie.
        end_date: first day where they may not.
        window_days: length of a window.
        stride_days: step from one window to the next.

    Raises:
        ValueError: dates out of order, a window longer than them, or a number below 1.
    """

    def __init__(
        self, start_date: DateLike, end_date: DateLike, window_days: int = 14, stride_days: int = 1
    ) -> None:
        self.spans = {"training": DateWindow.of(start_date, end_date, "training")}
        self.window_days = window_days
        self.stride_days = stride_days
        check_fits(self.spans["training"], window_days, "training")
        check_positive(stride_days, "stride_days")

    def first_train_window(self) -> DateWindow:
        """A window to make the data module with."""
        return first_window(self.spans["training"], self.window_days)

    def next_train_window(self, data: GNNDataModule) -> DateWindow:
        """The window in force, moved by the stride."""
        return slide_window(
            self.spans["training"],
            data.train.window,
            self.window_days,
            stride_days=self.stride_days,
        )


def data_module(trainer: Trainer) -> GNNDataModule:
    """The trainer's data module.

    Raises:
        ValueError: there is none, or it has no windows.
    """
    data: object = getattr(trainer, "datamodule", None)
    if not isinstance(data, GNNDataModule):
        raise ValueError(
            f"the Trainer's data module is {type(data).__name__}; call "
            "fit(model, datamodule=GNNDataModule(...))"
        )
    return data


def check_positive(value: int, name: str) -> None:
    """Refuse a number below 1."""
    if value < 1:
        raise ValueError(f"{name} is {value}; at least 1")


def check_fits(span: DateWindow, days: int, name: str) -> None:
    """Refuse a window of ``days`` days that ``span`` cannot hold."""
    check_positive(days, f"{name} window days")
    if first_window(span, days).end > span.end:
        raise ValueError(
            f"a {name} window of {days} days is longer than the {name} dates {span.id} "
            f"({span.length.days} days); shorten the window or widen the dates"
        )


def check_disjoint(train: DateWindow, val: DateWindow) -> None:
    """Refuse validation dates that are also trained on."""
    if train.overlaps(val):
        raise ValueError(
            f"training dates {train.id} and validation dates {val.id} overlap; end one where "
            "the other starts"
        )


def check_covered(span: DateWindow, covered: DateWindow, name: str) -> None:
    """Refuse dates that the archive does not have."""
    if not covered.covers(span):
        raise ValueError(
            f"{name} dates {span.id} leave the archive, which covers {covered.id}; choose "
            "dates inside"
        )
