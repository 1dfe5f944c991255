"""Data modules and callbacks that the mutants of :mod:`.windows` are put together from."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from ddp_conformance.framework.case import Case
from ddp_conformance.windows.mutants.data_mutants import Item, ShardDataset, WindowDataset

BATCH = 2
VALIDATION_START = 5000
POSITIONS = 1000
"""Where random windows may start."""


@dataclass(eq=False)
class Generation:
    """The objects of one window."""

    window: str
    summary: dict[str, int]
    bin_names: list[str]
    dataset: WindowDataset
    version: int
    token: str


class Windows(LightningDataModule):
    """Correct: a window change makes everything anew, and counts."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.case = case
        self.train_version = 0
        self.val_version = 0
        self.train: Generation | None = None
        self.val: Generation | None = None

    def setup(self, stage: str) -> None:
        """The first windows, and never another one."""
        if self.train is None:
            self.set_train_window(0)
            self.set_val_window(VALIDATION_START)

    def set_train_window(self, start: int) -> None:
        """Train on the samples from ``start`` on, from the next epoch on."""
        self.train_version += 1
        self.train = self.build(self.train, start, self.train_version)

    def set_val_window(self, start: int) -> None:
        """The same for validation."""
        self.val_version += 1
        self.val = self.build(self.val, start, self.val_version)

    def build(self, old: Generation | None, start: int, version: int) -> Generation:
        """All objects of a window; ``old`` is left alone."""
        summary = {f"bin{start + i}": start + i for i in range(self.case.size)}
        names = list(summary)
        token = uuid4().hex
        dataset = WindowDataset(names, summary, self.case.rank)
        window = window_name(start)
        dataset.stamp = {"window_id": window, "version": version, "token": token}
        return Generation(window, summary, names, dataset, version, token)

    def train_dataloader(self) -> DataLoader[Item]:
        """A new loader over this rank's share."""
        assert self.train is not None
        return self.loader(self.train.dataset)

    def val_dataloader(self) -> DataLoader[Item]:
        """The same for validation."""
        assert self.val is not None
        return self.loader(self.val.dataset)

    def loader(self, dataset: WindowDataset, persistent: bool = False) -> DataLoader[Item]:
        """A loader with the case's start method."""
        workers = self.case.num_workers
        return DataLoader(
            dataset,
            BATCH,
            sampler=self.sampler(dataset),
            num_workers=workers,
            persistent_workers=(persistent or self.case.persistent_workers) and workers > 0,
            multiprocessing_context=self.case.start_method,
        )

    def sampler(self, dataset: WindowDataset) -> DistributedSampler[Item]:
        """One of this class is what Lightning does not wrap in its own."""
        case = self.case
        return DistributedSampler(dataset, case.world_size, case.rank, shuffle=False)


def window_name(start: int) -> str:
    """The id of a window."""
    return f"from {start}"


def nth_window(epoch: int) -> str:
    """The schedule that most callbacks here follow."""
    return window_name(10 * epoch)


class Mover(Callback):
    """Correct: the next window at the end of the epoch, a function of the epoch."""

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        windows_of(trainer).set_train_window(10 * (trainer.current_epoch + 1))


def windows_of(trainer: Trainer) -> Windows:
    """The trainer's data module, as :class:`Windows`."""
    windows: Windows = trainer.datamodule  # type: ignore[attr-defined]
    return windows


# ------------------------------------------------------------- WIN-01, CBK-03: in force


class AtEpochStart(Callback):
    """Moves when the loader and its iterator exist already: one epoch late."""

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.current_epoch:
            windows_of(trainer).set_train_window(10 * trainer.current_epoch)


class AtEpochStartWithBarrier(AtEpochStart):
    """All ranks move together, and all of them too late."""

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_epoch_start(trainer, pl_module)
        trainer.strategy.barrier()


class AtTrainStart(Mover):
    """Chooses the first window when the first loader exists."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        windows_of(trainer).set_train_window(7)


class RebindingWindows(Windows):
    """Keeps one loader and edits its data set: workers keep the copy that they started with."""

    persistent: DataLoader[Item] | None = None

    def build(self, old: Generation | None, start: int, version: int) -> Generation:
        new = super().build(old, start, version)
        if old is not None:
            old.dataset.names, old.dataset.summary = new.bin_names, new.summary
            old.dataset.stamp = new.dataset.stamp
            new.dataset = old.dataset
        return new

    def train_dataloader(self) -> DataLoader[Item]:
        if self.persistent is None:
            self.persistent = super().train_dataloader()
        return self.persistent

    def loader(self, dataset: WindowDataset, persistent: bool = True) -> DataLoader[Item]:
        return super().loader(dataset, persistent)


class KeptLoaderWindows(RebindingWindows):
    """The same, but only where workers persist: a loader that is kept for their sake."""

    def train_dataloader(self) -> DataLoader[Item]:
        if not self.case.persistent_workers:
            self.persistent = None
        return super().train_dataloader()

    def loader(self, dataset: WindowDataset, persistent: bool = False) -> DataLoader[Item]:
        return super().loader(dataset, persistent)


class ShortWindows(Windows):
    """Later windows have one sample for each rank but the last, which is given the first one."""

    def build(self, old: Generation | None, start: int, version: int) -> Generation:
        new = super().build(old, start, version)
        size = self.case.size if old is None else self.case.world_size - 1
        own = range(self.case.rank, size, self.case.world_size)
        samples = [new.dataset.sample(index) for index in own]
        new.dataset = ShardDataset(new.dataset, samples or [self.instead(old, new)])
        return new

    def instead(self, old: Generation | None, new: Generation) -> Item:
        """What a rank without samples delivers, for Lightning does not bear an empty loader."""
        return {**new.dataset.sample(0), "repeated": True}

    def sampler(self, dataset: WindowDataset) -> DistributedSampler[Item]:
        """A sampler of this rank's own samples."""
        return DistributedSampler(dataset, num_replicas=1, rank=0, shuffle=False)


class KeptShortWindows(ShortWindows):
    """Without new samples, the last rank keeps an old one."""

    def instead(self, old: Generation | None, new: Generation) -> Item:
        assert old is not None, "the first window has samples for every rank"
        return old.dataset.sample(0)


# ------------------------------------------------------------- WIN-02: new objects


class EditingWindows(Windows):
    """``summary.clear(); summary.update()``, and the same for the names."""

    def build(self, old: Generation | None, start: int, version: int) -> Generation:
        new = super().build(old, start, version)
        if old is not None:
            old.summary.clear()
            old.summary.update(new.summary)
            old.bin_names[:] = new.bin_names
            new.summary, new.bin_names = old.summary, old.bin_names
        return new


class CachedDatasetWindows(Windows):
    """The data set is made once, and given the new stamp."""

    def build(self, old: Generation | None, start: int, version: int) -> Generation:
        new = super().build(old, start, version)
        if old is not None:
            old.dataset.names, old.dataset.summary = new.bin_names, new.summary
            old.dataset.stamp = new.dataset.stamp
            new.dataset = old.dataset
        return new


class CountingWindows(Windows):
    """Raises the version and rebuilds nothing."""

    def build(self, old: Generation | None, start: int, version: int) -> Generation:
        new = super().build(old, start, version)
        return new if old is None else replace(old, version=version, window=new.window)


# ------------------------------------------------------------- WIN-03: the counter


class UncountedWindows(Windows):
    """Rebuilds and forgets the counter."""

    def set_train_window(self, start: int) -> None:
        self.train_version = 1
        self.train = self.build(self.train, start, self.train_version)


class CountsTwice(Mover):
    """The callback counts as well."""

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_epoch_end(trainer, pl_module)
        windows_of(trainer).train_version += 1


# ------------------------------------------------------------- WIN-04: the same on all ranks


class RankLocalRandom(Callback):
    """Draws from the process's own random state."""

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        windows_of(trainer).set_train_window(random.randrange(POSITIONS))


class SeededRandom(Callback):
    """The same with a generator that is a function of the epoch."""

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        generator = random.Random(1000 + trainer.current_epoch)
        windows_of(trainer).set_train_window(generator.randrange(POSITIONS))


class BroadcastRandom(Callback):
    """Rank 0 draws, and broadcasts the window."""

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        start = random.randrange(POSITIONS)
        windows_of(trainer).set_train_window(trainer.strategy.broadcast(start))


class OnRankZero(Mover):
    """A guard that belongs on files, around the window."""

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero:
            super().on_train_epoch_end(trainer, pl_module)


# ------------------------------------------------------------- WIN-05: no rebuild within


class SetupInEpoch(Mover):
    """``setup("fit")`` at the epoch's start, to be sure."""

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        windows_of(trainer).setup("fit")


class SetupInBatch(Mover):
    """The same at a batch."""

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if batch_idx == 1:
            windows_of(trainer).setup("fit")


class LoaderInBatch(Mover):
    """Makes a second loader, to read its length."""

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        pl_module.log("batches", float(len(windows_of(trainer).train_dataloader())))


class SetupAtEnd(Mover):
    """``setup("fit")`` after the last batch: useless, and harmless."""

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_epoch_end(trainer, pl_module)
        windows_of(trainer).setup("fit")


# ------------------------------------------------------------- WIN-07, WIN-08: validation


class ValidationToo(Mover):
    """Moves the validation window as well, although it is declared fixed."""

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_epoch_end(trainer, pl_module)
        start = VALIDATION_START + 10 * (trainer.current_epoch + 1)
        windows_of(trainer).set_val_window(start)


class AfterValidation(Mover):
    """Moves it when a validation ends, and takes the sanity check for one."""

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        windows = windows_of(trainer)
        windows.set_val_window(VALIDATION_START + 10 * windows.val_version)


class AfterRealValidation(AfterValidation):
    """The same with the guard."""

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.sanity_checking:
            super().on_validation_epoch_end(trainer, pl_module)
