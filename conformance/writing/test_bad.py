"""Writers and preparations with ranks that diverge: what one could not do is no evidence."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch.distributed as dist
from ddp_conformance import GuaranteeError, Preparation, UndecidedError, Writer
from ddp_conformance.framework.registry import all_checks
from ddp_conformance.framework.subjects import Subject
from ddp_conformance.writing.mutants.guards_lightning import Prepares
from ddp_conformance.writing.mutants.writers import TELLS, BarrierUnderGuard, Log, lines, path_of


class BarrierBeforeWriting(Log):
    """Under the guard: cut off there, it has written nothing at all."""

    def append(self, number: int) -> None:
        dist.barrier()
        super().append(number)


class WritesEverywhereAndWaits(Log):
    """Two faults, one of which is seen before the ranks part."""

    def __call__(self, number: int) -> None:
        self.append(number)
        if self.case.rank == 0:
            dist.barrier()


class RaisesAfterWriting(Log):
    """A disk that is full on rank 0 only, when all the others are done."""

    def __call__(self, number: int) -> None:
        super().__call__(number)
        if self.case.rank == 0 and number:
            raise OSError("no space left on device")


class RaisesOnOneRank(Log):
    """A writer that raises on one rank before it writes: the other ranks go on to the second
    time.
    """

    def __call__(self, number: int) -> None:
        if self.case.rank == 1:
            raise OSError("no space left on device")
        super().__call__(number)


class CannotFetch(Prepares):
    """What is fetched for all cannot be fetched."""

    def download(self) -> None:
        raise OSError("no route to host")


class WaitsWhilePreparing(Prepares):
    """A data module with a barrier in the hook that one rank runs."""

    def prepare_data(self) -> None:
        super().prepare_data()
        dist.barrier()


class WaitsWhilePreparingSecondMachine(Prepares):
    """A data module with a barrier in the hook, only where rank 0 is on another machine."""

    def prepare_data(self) -> None:
        super().prepare_data()
        if self.case.rank:
            dist.barrier()


def asked_on_one_rank(log: Log) -> tuple[Path, ...]:
    """A collective that rank 0 alone makes."""
    if log.case.rank == 0:
        dist.barrier()
    return (log.path,)


def not_on_the_last_rank(log: Log) -> tuple[Path, ...]:
    """A path that one rank cannot tell."""
    if log.case.rank == log.case.world_size - 1:
        raise OSError("no such run")
    return (log.path,)


def the_check(guarantee: str, subject: Subject) -> None:
    (check,) = [check for check in all_checks() if check.id == guarantee]
    check(subject)


PARTED = r"\(see WRT-04\):\n.*collective \d+: .*barrier"


@pytest.mark.ddp(world_size=[2, 3])
@pytest.mark.parametrize(
    ("guarantee", "subject", "reason"),
    [
        ("WRT-01", Writer(BarrierUnderGuard, records=lines), PARTED),
        ("WRT-01", Writer(BarrierBeforeWriting), PARTED),
        ("WRT-03", Writer(BarrierUnderGuard, TELLS, paths=path_of), PARTED),
        ("WRT-03", Writer(Log, TELLS, paths=asked_on_one_rank), PARTED),
        ("WRT-03", Writer(Log, TELLS, paths=not_on_the_last_rank), "no such run"),
        ("WRT-03", Writer(RaisesAfterWriting, TELLS, paths=path_of), "no space left"),
        ("WRT-01", Writer(RaisesOnOneRank, {"first_wins"}), "rank 1: OSError: no space left"),
        ("WRT-06", Preparation(CannotFetch), r"before setup:\n  rank 0: OSError: no route"),
        ("WRT-06", Preparation(WaitsWhilePreparing), PARTED),
    ],
    ids=lambda value: value.name if isinstance(value, Subject) else None,
)
def test_no_verdict_where_ranks_part(guarantee: str, subject: Subject, reason: str) -> None:
    with pytest.raises(UndecidedError, match=reason):
        the_check(guarantee, subject)


@pytest.mark.ddp(world_size=2)
def test_no_verdict_where_ranks_part_on_several_machines() -> None:
    with pytest.raises(UndecidedError, match=PARTED):
        the_check("WRT-06", Preparation(WaitsWhilePreparingSecondMachine))


@pytest.mark.ddp(world_size=[2, 3])
def test_what_was_done_before_ranks_part_is_evidence() -> None:
    with pytest.raises(GuaranteeError, match="written by the code of ranks 0"):
        the_check("WRT-01", Writer(WritesEverywhereAndWaits, records=lines))
