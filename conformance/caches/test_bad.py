"""Caches that cannot be judged as if they were on several machines."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch.distributed as dist
from ddp_conformance import Cache, UndecidedError
from ddp_conformance.caches.mutants.precomputed import ONCE_PER_NODE, Produce, SharedSamples
from ddp_conformance.framework.registry import all_checks


def first_here() -> bool:
    """The first rank of its machine."""
    return os.environ["LOCAL_RANK"] == "0"


class TakesOneName(SharedSamples):
    """Under a name that each machine has once, and that is one for those that are simulated."""

    def build(self, produce: Produce) -> None:
        if first_here():
            self.fill(produce())
            self.case.directory.with_name("memory").mkdir()
        dist.barrier()


class ForgetsTheOtherMachines(SharedSamples):
    """A barrier for the first rank of all and the others of its machine."""

    def build(self, produce: Produce) -> None:
        if first_here():
            self.fill(produce())
        if self.case.rank == 0 or not first_here():
            dist.barrier()


class SaysThatAPeerFailed(ForgetsTheOtherMachines):
    """Raises an error in words of its own where that barrier is cut off."""

    def build(self, produce: Produce) -> None:
        try:
            super().build(produce)
        except RuntimeError as error:
            raise ValueError("a peer has failed") from error


class CannotBeReadOnOneRank(SharedSamples):
    """A cache that opens on all ranks, and cannot be read on one."""

    def __getitem__(self, index: int) -> Any:
        if self.case.rank == 1:
            raise OSError("the file is gone")
        return super().__getitem__(index)


PARTED = r"\(see WRT-04\):\n.*collective 0: .*barrier"


@pytest.mark.ddp(world_size=[2, 4])
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (TakesOneName, "FileExistsError"),
        (ForgetsTheOtherMachines, PARTED),
        (SaysThatAPeerFailed, PARTED),
    ],
)
def test_no_verdict(make: type[SharedSamples], reason: str) -> None:
    (check,) = [check for check in all_checks() if check.id == "MEM-03"]
    with pytest.raises(UndecidedError, match=reason):
        check(Cache(make, ONCE_PER_NODE))


@pytest.mark.ddp(world_size=[2, 3])
def test_no_verdict_where_one_rank_cannot_read() -> None:
    (check,) = [check for check in all_checks() if check.id == "MEM-02"]
    with pytest.raises(UndecidedError, match="rank 1: OSError: the file is gone"):
        check(Cache(CannotBeReadOnOneRank))
