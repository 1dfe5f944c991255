"""WRT-05: guards that take every rank for the first.

Processes that a check starts import this module one by one, so it imports no Lightning.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, TypeAlias

import torch.distributed as dist

from ddp_conformance.framework.case import Case
from ddp_conformance.framework.mutants import BenignVariant, Mutant
from ddp_conformance.writing.subjects import Guard

Action: TypeAlias = Callable[[], Any]

# ------------------------------------------------------------- WRT-05: the true rank


class AsksEnvironment:
    """``RANK``, which Lightning's own launcher does not set; then every rank is rank 0."""

    def __init__(self, case: Case) -> None:
        """Guards use nothing of the case."""

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
    """The rank in the job, by srun's variable."""

    @property
    def rank(self) -> int:
        return dist.get_rank() if dist.is_initialized() else int(os.environ["SLURM_PROCID"])


class AsksLocalTask(AsksTask):
    """The rank on the machine, by srun's variable."""

    @property
    def rank(self) -> int:
        return dist.get_rank() if dist.is_initialized() else int(os.environ["SLURM_LOCALID"])


class AskedAtImport(AsksEnvironment):
    """A guard as a module had it when it was imported, which the factory does late."""

    def __init__(self, case: Case) -> None:
        from ddp_conformance.writing.mutants import rank_at_import

        super().__init__(case)
        self.kept = rank_at_import.RANK

    @property
    def rank(self) -> int:
        return self.kept


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
        at_most = int(os.environ["WORLD_SIZE"])  # no variable has the ranks of a machine
        return node * at_most + local
    return None


MUTANTS = (
    Mutant(Guard(AsksEnvironment), "WRT-05", "RANK, 0 if it is missing", (2, 3)),
    Mutant(Guard(AsksGroup), "WRT-05", "0 before there is a process group", (2, 3)),
    Mutant(Guard(AskedOnce), "WRT-05", "read in the launcher's process", (2, 3)),
    Mutant(
        Guard(AskedAtImport, launchers=("torchrun",)), "WRT-05", "read at a late import", (2, 3)
    ),
    Mutant(
        Guard(partial(AskedAtImport), name="asked_at_import", launchers=("torchrun",)),
        "WRT-05",
        "the same in a partial",
        (2,),
    ),
    Mutant(Guard(AsksLocalRank), "WRT-05", "LOCAL_RANK on several machines", (2, 4)),
    Mutant(
        Guard(AsksLocalTask, launchers=("slurm",)), "WRT-05", "SLURM_LOCALID on several machines"
    ),
)

BENIGN_VARIANTS = (
    BenignVariant(Guard(AsksAll), "reads the launcher's variables before there is a group"),
    BenignVariant(Guard(AsksWhenUsed), "read when it is used, and kept"),
    BenignVariant(
        Guard(partial(AsksWhenUsed), name="asked_when_used"), "the same in a partial", (2,)
    ),
    BenignVariant(
        Guard(AsksLocalRank, {"once_per_node"}, name="guard_of_each_machine"), "LOCAL_RANK"
    ),
    BenignVariant(
        Guard(AsksTask, launchers=("slurm",)), "srun's variables before there is a group"
    ),
    BenignVariant(Guard(Refuses), "raises before there is a group"),
)
