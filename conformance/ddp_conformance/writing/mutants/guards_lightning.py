"""WRT-05 and WRT-06: Lightning's own guard, and data prepared too often."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import filelock
import torch.distributed as dist
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities import rank_zero_only
from torch.utils.data import DataLoader

from ddp_conformance.framework.case import Case, IndexDataset
from ddp_conformance.framework.mutants import BenignVariant, Mutant
from ddp_conformance.writing.mutants.guards import Action, AsksEnvironment
from ddp_conformance.writing.subjects import Guard, Preparation


class AsksLightning(AsksEnvironment):
    """Lightning's decorator, which keeps the rank of its import, and takes the local one for it."""

    def __call__(self, action: Action) -> None:
        rank_zero_only(action)()


# ------------------------------------------------------------- WRT-06: prepared once


class Prepares(LightningDataModule):
    """Correct: files in ``prepare_data``, state in ``setup``."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.case = case
        self.path: Path = case.directory / "data.txt"
        self.dataset: IndexDataset | None = None

    def prepare_data(self) -> None:
        """Make the file, in one process."""
        self.download()

    def download(self) -> None:
        """What ``prepare_data`` is for."""
        self.path.write_text(str(self.case.size), encoding="utf-8")

    def setup(self, stage: str) -> None:
        """Read it, on all ranks."""
        self.dataset = IndexDataset(int(self.path.read_text(encoding="utf-8")))

    def train_dataloader(self) -> DataLoader[Any]:
        """This rank's loader."""
        if self.dataset is None:
            raise RuntimeError("there is no data set on this rank")
        return DataLoader(self.dataset, batch_size=2)


class DownloadsInSetup(Prepares):
    """Every rank downloads to one path."""

    def prepare_data(self) -> None:
        """Nothing is left to do."""

    def setup(self, stage: str) -> None:
        self.download()
        super().setup(stage)


class DownloadsIfMissing(DownloadsInSetup):
    """Every rank that finds nothing there downloads: one of them, or all."""

    def download(self) -> None:
        if not self.path.exists():
            super().download()


class DownloadsBeforeOthersLook(DownloadsIfMissing):
    """The first rank of each machine downloads, and the others look when it has."""

    def setup(self, stage: str) -> None:
        if os.environ["LOCAL_RANK"] == "0":
            self.download()
        dist.barrier()
        super().setup(stage)


class DownloadsOnRankZero(Prepares):
    """Prepares on the first of all ranks, as if other machines saw its files."""

    def prepare_data(self) -> None:
        if os.environ["RANK"] == "0":
            super().prepare_data()


class DownloadsForAll(DownloadsOnRankZero):
    """The same, and declares it by ``prepare_data_per_node``."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.prepare_data_per_node = False


class PreparesAgain(Prepares):
    """Calls ``prepare_data`` by hand, to be sure, on every rank."""

    def setup(self, stage: str) -> None:
        self.prepare_data()
        super().setup(stage)


class SetsUpOneRank(Prepares):
    """``rank_zero_only`` around the wrong hook."""

    @rank_zero_only
    def setup(self, stage: str) -> None:
        super().setup(stage)


class KeepsState(Prepares):
    """Keeps in ``prepare_data`` what the other ranks never get."""

    def prepare_data(self) -> None:
        super().prepare_data()
        self.dataset = IndexDataset(self.case.size)

    def setup(self, stage: str) -> None:
        """Taken for superfluous."""


class OwnCache(Prepares):
    """Each rank writes a file of its own name."""

    def setup(self, stage: str) -> None:
        super().setup(stage)
        (self.case.directory / f"order-{self.case.rank}.txt").write_text("0", encoding="utf-8")


class TakesLockInSetup(Prepares):
    """Every rank takes a lock, in a file that stays empty, while it reads."""

    def setup(self, stage: str) -> None:
        with filelock.FileLock(self.path.with_suffix(".lock")):
            super().setup(stage)


class NothingToPrepare(Prepares):
    """No ``prepare_data``, and no file."""

    prepare_data = LightningDataModule.prepare_data

    def setup(self, stage: str) -> None:
        self.dataset = IndexDataset(self.case.size)


MUTANTS = (
    Mutant(Guard(AsksLightning), "WRT-05", "Lightning's rank_zero_only, imported early", (2, 3)),
    Mutant(Preparation(DownloadsInSetup), "WRT-06", "download in setup"),
    Mutant(Preparation(DownloadsIfMissing), "WRT-06", "download in setup, if nothing is there"),
    Mutant(Preparation(DownloadsOnRankZero), "WRT-06", "files on one machine of several", (2,)),
    Mutant(Preparation(PreparesAgain), "WRT-06", "prepare_data called by hand"),
    Mutant(Preparation(SetsUpOneRank), "WRT-06", "setup under rank_zero_only"),
    Mutant(Preparation(KeepsState), "WRT-06", "state kept in prepare_data"),
)

BENIGN_VARIANTS = (
    BenignVariant(Preparation(Prepares), "files in prepare_data, state in setup"),
    BenignVariant(Preparation(DownloadsForAll), "prepared once for machines that see one folder"),
    BenignVariant(
        Preparation(DownloadsBeforeOthersLook), "download in setup, before the others look"
    ),
    BenignVariant(Preparation(OwnCache), "setup writes a file for each rank"),
    BenignVariant(Preparation(TakesLockInSetup), "setup behind a lock that all ranks take"),
    BenignVariant(Preparation(NothingToPrepare), "no prepare_data"),
)
