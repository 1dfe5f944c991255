"""The ResNet's text log has one writer, at world sizes 1, 2 and 4."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ddp_conformance import Case, Subject, Writer, parametrize_with_checks
from ddp_reference.resnet.text_log import METRICS, TextLoggingCallback

if TYPE_CHECKING:
    from ddp_conformance.frontend.pytest_frontend import BoundCheck


def trainer_of(case: Case) -> Any:
    """What the log reads of a Trainer."""
    return SimpleNamespace(
        is_global_zero=case.rank == 0,
        global_rank=case.rank,
    )


class ResNetLog:
    """Writes one event for each record."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.log = TextLoggingCallback()
        self.log.directory = case.directory
        self.path = case.directory / METRICS

    def __call__(self, number: int) -> None:
        self.log.write(trainer_of(self.case), "epoch", f"epoch {number}", epoch=number)


def logged_epochs(directory: Path) -> list[int]:
    return [entry["epoch"] for entry in json.loads((directory / METRICS).read_text())]


def metrics_file(writer: ResNetLog) -> tuple[Path, ...]:
    return (writer.path,)


SUBJECTS = [
    Writer(
        ResNetLog, {"tells_paths"}, "resnet_text_log", records=logged_epochs, paths=metrics_file
    ),
]


@parametrize_with_checks(SUBJECTS, world_size=(1, 2, 4), share_ranks=True)
def test_reference(subject: Subject, check: BoundCheck) -> None:
    check(subject)
