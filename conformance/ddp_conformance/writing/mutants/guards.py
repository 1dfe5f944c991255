"""WRT-05 and WRT-06: guards that take every rank for the first, and data prepared too often."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import filelock
import torch.distributed as dist
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities import rank_zero_only
from torch.utils.data import DataLoader

from ddp_conformance.frame.case import Case, IndexDataset
from ddp_conformance.frame.mutants import Mutant, Twin
from ddp_conformance.writing.subjects import Guard, Preparation

Action: TypeAlias = Callable[[], Any]

# ------------------------------------------------------------- WRT-05: the true rank


class AsksEnvironment:
    """``RANK``, which Lightning's own launcher does not set; then every rank is rank 0."""

    def __init__(self, case: Case) -> None:
        """Guards know the case by nothing that it says."""

    def __call__(self, action: Action) -> None:
        if self.rank == 0:
            action()

    @property
    def rank(self) -> int:
        """The rank that it believes in."""
        return int(os.environ.get("RANK", "0"))


class AsksGroup(AsksEnvironment):
    """The process group, and 0 as long as there is none."""

    @property
    def rank(self) -> int:
        return dist.get_rank() if dist.is_initialized() else 0


class AskedOnce(AsksEnvironment):
    """The rank as it was when the module was imported, in the launcher's own process."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.kept = launched_rank() or 0

    @property
    def rank(self) -> int:
        return self.kept


class AsksLocalRank(AsksEnvironment):
    """The rank on its machine: each machine has a first one."""

    @property
    def rank(self) -> int:
        return int(os.environ["LOCAL_RANK"])


class AsksTask(AsksEnvironment):
    """What srun tells of the whole job."""

    @property
    def rank(self) -> int:
        return dist.get_rank() if dist.is_initialized() else int(os.environ["SLURM_PROCID"])


class AsksLocalTask(AsksTask):
    """What srun tells of one machine."""

    @property
    def rank(self) -> int:
        return dist.get_rank() if dist.is_initialized() else int(os.environ["SLURM_LOCALID"])


class AskedAtImport(AsksEnvironment):
    """As a module had it when it was imported, which the factory does late."""

    def __init__(self, case: Case) -> None:
        from ddp_conformance.writing.mutants import rank_at_import

        super().__init__(case)
        self.kept = rank_at_import.RANK

    @property
    def rank(self) -> int:
        return self.kept


class AsksLightning(AsksEnvironment):
    """Lightning's decorator, which keeps the rank of its import, and takes the local one for it."""

    def __call__(self, action: Action) -> None:
        rank_zero_only(action)()


class AsksAll(AsksEnvironment):
    """The process group, and before there is one whatever the launcher has set."""

    @property
    def rank(self) -> int:
        return dist.get_rank() if dist.is_initialized() else launched_rank() or 0


class AsksWhenUsed(AsksAll):
    """Kept too, but not before it is used."""

    @cached_property
    def rank(self) -> int:
        return super().rank


class Refuses(AsksGroup):
    """The process group, and an error as long as several ranks have none."""

    @property
    def rank(self) -> int:
        if not dist.is_initialized() and "WORLD_SIZE" in os.environ:
            raise RuntimeError("call init_process_group first")
        return super().rank


def launched_rank() -> int | None:
    """The rank that torchrun or Lightning's launcher has given; None without a launcher."""
    if "RANK" in os.environ:
        return int(os.environ["RANK"])
    if "LOCAL_RANK" in os.environ:
        node, local = int(os.environ.get("NODE_RANK", "0")), int(os.environ["LOCAL_RANK"])
        at_most = int(os.environ["WORLD_SIZE"])  # ranks on a machine, whose number is not told
        return node * at_most + local
    return None


# ------------------------------------------------------------- WRT-06: prepared once


class Prepares(LightningDataModule):
    """As it should be: files in ``prepare_data``, state in ``setup``."""

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


class DownloadsOnRankZero(Prepares):
    """Prepares on the first of all ranks, as if other machines saw its files."""

    def prepare_data(self) -> None:
        if os.environ["RANK"] == "0":
            super().prepare_data()


class DownloadsForAll(DownloadsOnRankZero):
    """The same, and says that they do."""

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
    Mutant(Guard(AsksEnvironment), "WRT-05", "RANK, 0 if it is missing", (2, 3)),
    Mutant(Guard(AsksGroup), "WRT-05", "0 before there is a process group", (2, 3)),
    Mutant(Guard(AskedOnce), "WRT-05", "asked in the launcher's process", (2, 3)),
    Mutant(
        Guard(AskedAtImport, launchers=("torchrun",)), "WRT-05", "asked at a late import", (2, 3)
    ),
    Mutant(Guard(AsksLocalRank), "WRT-05", "LOCAL_RANK on several machines", (2, 4)),
    Mutant(
        Guard(AsksLocalTask, launchers=("slurm",)), "WRT-05", "SLURM_LOCALID on several machines"
    ),
    Mutant(Guard(AsksLightning), "WRT-05", "Lightning's rank_zero_only, imported early", (2, 3)),
    Mutant(Preparation(DownloadsInSetup), "WRT-06", "download in setup"),
    Mutant(Preparation(DownloadsOnRankZero), "WRT-06", "files on one machine of several", (2,)),
    Mutant(Preparation(PreparesAgain), "WRT-06", "prepare_data called by hand"),
    Mutant(Preparation(SetsUpOneRank), "WRT-06", "setup under rank_zero_only"),
    Mutant(Preparation(KeepsState), "WRT-06", "state kept in prepare_data"),
)

TWINS = (
    Twin(Guard(AsksAll), "asks the launcher's variables before there is a group"),
    Twin(Guard(AsksWhenUsed), "asked when it is used, and kept"),
    Twin(Guard(AsksLocalRank, {"once_per_node"}, name="guard_of_each_machine"), "LOCAL_RANK"),
    Twin(Guard(AsksTask, launchers=("slurm",)), "asks srun before there is a group"),
    Twin(Guard(Refuses), "raises before there is a group"),
    Twin(Preparation(Prepares), "files in prepare_data, state in setup"),
    Twin(Preparation(DownloadsForAll), "prepared once for machines that see one folder"),
    Twin(Preparation(OwnCache), "setup writes a file for each rank"),
    Twin(Preparation(TakesLockInSetup), "setup behind a lock that all ranks take"),
    Twin(Preparation(NothingToPrepare), "no prepare_data"),
)
