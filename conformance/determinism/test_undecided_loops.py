"""Loops of which nothing can be said, with the reason."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, ClassVar

import pytest
from ddp_conformance import TrainLoop, UndecidedError
from ddp_conformance.determinism.mutants.part_mutants import ReadsByItself
from ddp_conformance.framework.registry import all_checks

RESUMES = frozenset({"resumes"})


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


class Remembers(ReadsByItself):
    """Goes on with what this process has kept."""

    kept: ClassVar[dict[Path, Any]] = {}

    def save(self, path: Path) -> None:
        super().save(path)
        self.kept[path] = copy.deepcopy(self.content())

    def read(self, path: Path) -> Any:
        return copy.deepcopy(self.kept[path])


@pytest.mark.ddp(world_size=2)
def test_a_loop_that_saves_nothing() -> None:
    with pytest.raises(UndecidedError, match=r"left nothing at the path of Leg\.save$"):
        check_of("DET-07", TrainLoop(SavesNothing, RESUMES))


@pytest.mark.ddp(world_size=2)
@pytest.mark.parametrize("make", [BeginsAnew, Remembers])
def test_a_loop_that_does_not_open_its_checkpoint(make: type[ReadsByItself]) -> None:
    with pytest.raises(UndecidedError, match="goes on as well without any file of its checkpoint"):
        check_of("DET-07", TrainLoop(make, RESUMES))


@pytest.mark.ddp(world_size=2)
def test_a_loop_that_does_not_save_on_its_way() -> None:
    with pytest.raises(UndecidedError, match=r"left nothing at the path of Leg.save_at\[0\]"):
        check_of("DET-08", TrainLoop(SavesAtTheEndAlone, RESUMES))


def test_a_loop_that_resumes_elsewhere_resumes() -> None:
    with pytest.raises(ValueError, match="the trait 'resumes_elsewhere' needs 'resumes'"):
        TrainLoop(ReadsByItself, {"resumes_elsewhere"})
