"""Loops that cannot be judged, with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from ddp_conformance import TrainLoop, UndecidedError
from ddp_conformance.determinism.mutants.moving_mutants import Moves
from ddp_conformance.determinism.mutants.part_mutants import ReadsByItself
from ddp_conformance.framework.registry import all_checks

RESUMES = frozenset({"resumes", "resumes_elsewhere"})


def check_of(guarantee: str, subject: TrainLoop) -> None:
    (check,) = [check for check in all_checks() if check.id == guarantee]
    check(subject)


class SavesAtTheEndAlone(ReadsByItself):
    """Knows nothing of steps at which to save."""

    def save_on_the_way(self) -> None:
        return


class SavesNothing(ReadsByItself):
    """Has no checkpoint at the end of its leg."""

    def save(self, path: Path) -> None:
        return


class BeginsAnew(ReadsByItself):
    """Opens no checkpoint."""

    def read(self, path: Path) -> Any:
        return self.content()


class ReadsACopy(Moves):
    """Goes on from what it has written beside its checkpoint."""

    def save(self, path: Path) -> None:
        super().save(path)
        super().save(path.with_suffix(".copy"))

    def read(self, path: Path) -> Any:
        return super().read(path.with_suffix(".copy"))


class LoadsNothing(ReadsByItself):
    """Looks for a checkpoint of torch's that is not there."""

    def train(self) -> None:
        missing = self.case.directory / "missing"
        dcp.load({"weight": torch.zeros(1)}, checkpoint_id=missing, no_dist=True)


@pytest.mark.ddp(world_size=2)
@pytest.mark.parametrize("guarantee", ["DET-06", "DET-07"])
def test_a_loop_that_saves_nothing(guarantee: str) -> None:
    with pytest.raises(UndecidedError, match=r"left nothing at the path of Leg\.save$"):
        check_of(guarantee, TrainLoop(SavesNothing, RESUMES))


@pytest.mark.ddp(world_size=2)
@pytest.mark.parametrize("guarantee", ["DET-06", "DET-07"])
@pytest.mark.parametrize("make", [BeginsAnew, ReadsACopy])
def test_a_loop_that_does_not_open_its_checkpoint(
    make: type[ReadsByItself], guarantee: str
) -> None:
    with pytest.raises(UndecidedError, match="goes on as well without any file of its checkpoint"):
        check_of(guarantee, TrainLoop(make, RESUMES))


@pytest.mark.ddp(world_size=2)
def test_a_loop_that_does_not_save_on_its_way() -> None:
    with pytest.raises(UndecidedError, match=r"left nothing at the path of Leg.save_at\[0\]"):
        check_of("DET-08", TrainLoop(SavesAtTheEndAlone, RESUMES))


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
@pytest.mark.ddp(world_size=2)
@pytest.mark.parametrize("guarantee", ["DET-01", "DET-02", "DET-06", "DET-07", "DET-08"])
def test_a_loop_that_raises_an_exception_of_a_checkpoint(guarantee: str) -> None:
    with pytest.raises(UndecidedError, match=r"rank 1: CheckpointException: \w+Error: "):
        check_of(guarantee, TrainLoop(LoadsNothing, RESUMES))


def test_a_loop_that_resumes_elsewhere_resumes() -> None:
    with pytest.raises(ValueError, match="the trait 'resumes_elsewhere' needs 'resumes'"):
        TrainLoop(ReadsByItself, {"resumes_elsewhere"})
