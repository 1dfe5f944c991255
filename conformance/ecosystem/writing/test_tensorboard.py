"""TensorBoard's writer as torch has it, and the guard that its users put around it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ddp_conformance import Case, Subject, Writer
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

from conformance.ecosystem.frame.parts import Breach, Part, parametrize_with_parts

if TYPE_CHECKING:
    from ddp_conformance.frontend.pytest_frontend import BoundCheck


def tensorboard_on_all_ranks(case: Case) -> Callable[[int], None]:
    writer = SummaryWriter(case.directory)

    def write(number: int) -> None:
        writer.add_scalar("loss", float(number), number)
        writer.flush()

    return write


def tensorboard_on_rank_0(case: Case) -> Callable[[int], None]:
    return tensorboard_on_all_ranks(case) if case.rank == 0 else lambda number: None


def logged_events(directory: Path) -> list[int]:
    files = sorted(directory.rglob("events.out.tfevents.*"))
    return [e.step for f in files for e in EventAccumulator(str(f)).Reload().Scalars("loss")]


PARTS = [
    Part(
        Writer(tensorboard_on_all_ranks, records=logged_events),
        "`SummaryWriter(folder)` on every rank, as in a script for one process",
        [
            Breach(
                ("WRT-01",),
                "each rank has a file of its own in the folder: TensorBoard shows each point twice",
                "tensorboard/all_ranks.py",
            )
        ],
    ),
    Part(Writer(tensorboard_on_rank_0, records=logged_events), "`SummaryWriter(folder)` on rank 0"),
]


@parametrize_with_parts(PARTS, share_ranks=True)
def test_tensorboard(subject: Subject, check: BoundCheck) -> None:
    check(subject)
