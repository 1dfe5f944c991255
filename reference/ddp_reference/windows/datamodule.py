"""The data module: rebuilds a split as a whole whenever its window changes."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from lightning.pytorch import LightningDataModule
from torch.utils.data import get_worker_info
from torch_geometric.loader import DataLoader

from ddp_reference.windows.archive import BinFile, organize_bins_times
from ddp_reference.windows.dataset import BinDataset, Stamp, init_worker
from ddp_reference.windows.placement import current_placement
from ddp_reference.windows.sampling import ExactSampler, PaddedSampler
from ddp_reference.windows.window import DateLike, DateWindow
from ddp_reference.workers import worker_context

log = logging.getLogger(__name__)

Split = Literal["train", "val"]


@dataclass(frozen=True)
class Rebuild:
    """One entry of the rebuild log."""

    split: Split
    """The data that were rebuilt."""
    version: int
    """Number of this rebuild in its split, equal on all ranks."""
    rank: int
    """Rank that rebuilt."""
    worker: int | None
    """DataLoader worker that rebuilt; None, the main process, unless someone errs."""
    token: str
    """Unique for the objects that were made."""
    window_id: str
    """``DateWindow.id`` of the new window."""
    bins: int
    """Number of samples in the new window."""


@dataclass(frozen=True)
class Generation:
    """The objects of one rebuild. They are replaced together and never edited."""

    window: DateWindow
    summary: dict[str, BinFile]
    bin_names: list[str]
    dataset: BinDataset


class GNNDataModule(LightningDataModule):
    """Graphs of a training and a validation window of an archive.

    A new window means a new summary, name list, data set and loader. Nothing old is edited:
    a loader that is still in use, and workers that hold a copy, keep what they began with.
    Give the Trainer ``reload_dataloaders_every_n_epochs=1``, or it goes on with old loaders.

    Set a window between epochs only, best in ``on_train_epoch_end``: the Trainer makes the
    loader and its iterator *before* ``on_train_epoch_start``, so a window set there is used
    one epoch late.

    Samples are dealt to the ranks by samplers that the Trainer leaves alone, whatever
    ``use_distributed_sampler`` says.

    Args:
        root: folder of the archive.
        train_start: first day of the first training window.
        train_end: first day after it.
        val_start: first day of the first validation window.
        val_end: first day after it.
        batch_size: graphs in a batch, on each rank.
        num_workers: DataLoader workers of each rank.
        seed: fixes the order of the training samples; equal on all ranks.
        multiprocessing_context: ``fork``, ``spawn`` or ``forkserver`` for the workers; by
            default as :func:`~ddp_reference.workers.worker_context` says.

    Raises:
        ValueError: dates out of order, or a batch size below 1.
    """

    def __init__(
        self,
        root: str | Path,
        train_start: DateLike,
        train_end: DateLike,
        val_start: DateLike,
        val_end: DateLike,
        batch_size: int = 8,
        num_workers: int = 0,
        *,
        seed: int = 42,
        multiprocessing_context: str | None = None,
    ) -> None:
        super().__init__()
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}; at least 1 graph")
        self.root = Path(root)
        self.batch_size = batch_size
        self.num_workers = num_workers
        self.seed = seed
        self.multiprocessing_context = multiprocessing_context
        self.rebuilds: list[Rebuild] = []
        self._first_train_window = DateWindow.of(train_start, train_end, "training")
        self._first_val_window = DateWindow.of(val_start, val_end, "validation")
        self._train_version = 0
        self._val_version = 0
        self._train: Generation | None = None
        self._val: Generation | None = None

    @property
    def train_version(self) -> int:
        """Number of the training data in force; 0 before ``setup``."""
        return self._train_version

    @property
    def val_version(self) -> int:
        """Number of the validation data in force; 0 before ``setup``."""
        return self._val_version

    @property
    def train(self) -> Generation:
        """The training data in force."""
        return _built(self._train, "training")

    @property
    def val(self) -> Generation:
        """The validation data in force."""
        return _built(self._val, "validation")

    def setup(self, stage: str) -> None:
        """Build the first windows. Runs before the first epoch, and never rebuilds."""
        if self._train is None:
            self.set_train_window(self._first_train_window.start, self._first_train_window.end)
        if self._val is None:
            self.set_val_window(self._first_val_window.start, self._first_val_window.end)

    def set_train_window(self, start: DateLike, end: DateLike) -> None:
        """Train on ``start <= t < end`` from the next epoch on. Call it on all ranks.

        Raises:
            ValueError: dates out of order; the old data stay in force.
            ArchiveError: no bin in the window; the old data stay in force.
        """
        window = DateWindow.of(start, end, "training")
        self._rebuild_train_summary(window, self._train_version + 1)

    def set_val_window(self, start: DateLike, end: DateLike) -> None:
        """Validate on ``start <= t < end`` from the next epoch on. Call it on all ranks.

        Raises:
            ValueError: dates out of order; the old data stay in force.
            ArchiveError: no bin in the window; the old data stay in force.
        """
        window = DateWindow.of(start, end, "validation")
        self._rebuild_val_summary(window, self._val_version + 1)

    def _rebuild_train_summary(self, window: DateWindow, version: int) -> None:
        # Counter and data move together, and only once the new data exist.
        self._train = self._build("train", window, version)
        self._train_version = version

    def _rebuild_val_summary(self, window: DateWindow, version: int) -> None:
        self._val = self._build("val", window, version)
        self._val_version = version

    def _build(self, split: Split, window: DateWindow, version: int) -> Generation:
        summary = organize_bins_times(self.root, window.start, window.end)
        bin_names = list(summary)
        stamp = Stamp(window.id, version, uuid4().hex, current_placement(self.trainer).rank)
        self._record(split, stamp, len(bin_names))
        return Generation(window, summary, bin_names, BinDataset(bin_names, summary, stamp))

    def _record(self, split: Split, stamp: Stamp, bins: int) -> None:
        info = get_worker_info()
        worker = None if info is None else info.id
        rebuild = Rebuild(
            split, stamp.version, stamp.rank, worker, stamp.token, stamp.window_id, bins
        )
        self.rebuilds.append(rebuild)
        log.info("rebuilt: %s", rebuild)

    def train_dataloader(self) -> DataLoader:
        """A new loader over this rank's shard of the training data, in a new order."""
        placement = current_placement(self.trainer)
        sampler = PaddedSampler(self.train.dataset, placement, seed=self.seed)
        # The Trainer sets the epoch after it has made the iterator, and workers are then
        # already busy with the order of epoch 0: seen after a resume.
        sampler.set_epoch(self.trainer.current_epoch if self.trainer else 0)
        return self._loader(self.train.dataset, sampler)

    def val_dataloader(self) -> DataLoader:
        """A new loader over this rank's shard of the validation data."""
        sampler = ExactSampler(self.val.dataset, current_placement(self.trainer))
        return self._loader(self.val.dataset, sampler)

    def _loader(self, dataset: BinDataset, sampler: PaddedSampler | ExactSampler) -> DataLoader:
        level = log.getEffectiveLevel()
        loader = DataLoader(
            dataset,
            batch_size=self.batch_size,
            sampler=sampler,
            num_workers=self.num_workers,
            worker_init_fn=partial(init_worker, stamp=dataset.stamp, log_level=level),
            multiprocessing_context=self._worker_context(),
        )
        log.info(
            "new loader: id=%d sampler=%s samples=%d version=%d rank=%d token=%s",
            *(id(loader), type(sampler).__name__, len(sampler)),
            *(dataset.stamp.version, dataset.stamp.rank, dataset.stamp.token),
        )
        return loader

    def _worker_context(self) -> BaseContext | str | None:
        if self.num_workers and self.multiprocessing_context is not None:
            return self.multiprocessing_context
        return worker_context(self.num_workers, preload=__name__)

    def state_dict(self) -> dict[str, Any]:
        """Windows and versions in force, for the checkpoint."""
        return {
            "train": _window_state(self.train, self._train_version),
            "val": _window_state(self.val, self._val_version),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Rebuild the windows of a checkpoint under their old version numbers."""
        train, val = state_dict["train"], state_dict["val"]
        self._rebuild_train_summary(DateWindow.of(train["start"], train["end"]), train["version"])
        self._rebuild_val_summary(DateWindow.of(val["start"], val["end"]), val["version"])


def _built(generation: Generation | None, name: str) -> Generation:
    if generation is None:
        raise RuntimeError(f"there are no {name} data yet; call setup('fit') first")
    return generation


def _window_state(generation: Generation, version: int) -> dict[str, Any]:
    window = generation.window
    return {
        "start": window.start.isoformat(),
        "end": window.end.isoformat(),
        "version": version,
    }
