"""Caches whose builder is killed: what is found, what is allowed, and what is undecided."""

from __future__ import annotations

import cProfile
import functools
import multiprocessing
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ddp_conformance import Cache, Case, UndecidedError
from ddp_conformance.caches.history import NewFiles
from ddp_conformance.caches.killing import FileCount, kills
from ddp_conformance.caches.mutants.killed import MarkedWhenWhole, TrustsFilesOfFullSize
from ddp_conformance.caches.mutants.precomputed import Produce, SharedSamples
from ddp_conformance.framework.registry import all_checks
from ddp_conformance.framework.verdict import GuaranteeError
from torch import Tensor

on_ranks = pytest.mark.ddp(world_size=2)


def check(make: Callable[[Case, Produce], Any]) -> None:
    (mem_07,) = [check for check in all_checks() if check.id == "MEM-07"]
    mem_07(Cache(make, name="cache"))


class TrustsManyFiles(TrustsFilesOfFullSize):
    """The state in which all are there, and none is filled, comes with the last of them."""

    KEYS = tuple(f"key_{number}" for number in range(6))

    def is_there(self) -> bool:
        return all(self.path(key).exists() for key in self.KEYS)

    def fill(self, content: Mapping[str, Tensor]) -> None:
        super().fill(dict.fromkeys(self.KEYS, content["label"]))

    def open(self) -> dict[str, Tensor]:
        return {key: self.mapped(key) for key in self.KEYS}

    def mapped(self, key: str) -> Tensor:
        return torch.from_file(str(self.path(key)), True, self.case.size, dtype=torch.int64)


class BuiltInAFork(TrustsFilesOfFullSize):
    """A child of the rank produces and writes."""

    def build(self, produce: Produce) -> None:
        if self.case.rank == 0 and not self.is_there():
            child = multiprocessing.get_context("fork").Process(target=lambda: self.fill(produce()))
            child.start()
            child.join()
        dist.barrier()


@on_ranks
@pytest.mark.parametrize(("make", "last"), [(TrustsManyFiles, 6), (BuiltInAFork, 2)])
def test_zeros_that_are_trusted_are_found(make: type[SharedSamples], last: int) -> None:
    with pytest.raises(GuaranteeError, match=f"after a kill at new file {last}, key .*: rank 0"):
        check(make)


class RefusedWhereItIsBuilt(MarkedWhenWhole):
    """Rank 0 raises where the mark is missing, and the others wait for it."""

    def fill(self, content: Mapping[str, Tensor]) -> None:
        if self.path("values").exists():
            raise RuntimeError("a builder has died here; remove the folder")
        super().fill(content)


class LeftByAll(MarkedWhenWhole):
    """All ranks end the program where the mark is missing."""

    def build(self, produce: Produce) -> None:
        if self.path("values").exists() and not self.is_there():
            raise SystemExit("a builder has died here; remove the folder")
        dist.barrier()
        super().build(produce)


class OpenedWhenUsed(SharedSamples):
    """Files that are missing or too short raise where the tensors are first wanted."""

    def __init__(self, case: Case, produce: Produce) -> None:
        self.case = case
        if case.rank == 0 and not self.path("values").exists():
            self.fill(produce())
        dist.barrier()

    def mapped(self, key: str) -> Tensor:
        if not self.path(key).exists():
            raise FileNotFoundError(self.path(key))
        return super().mapped(key)

    @property
    def tensors(self) -> dict[str, Tensor]:  # type: ignore[override]
        return self.open()


class DrawsSome(MarkedWhenWhole):
    """A key that each build draws anew."""

    def fill(self, content: Mapping[str, Tensor]) -> None:
        generator = torch.Generator()
        generator.seed()
        drawn = torch.randint(2**62, (self.case.size,), generator=generator)
        self.path("drawn").write_bytes(drawn.numpy().tobytes())
        super().fill(content)

    def open(self) -> dict[str, Tensor]:
        drawn = torch.from_file(str(self.path("drawn")), True, self.case.size, dtype=torch.int64)
        return {**super().open(), "drawn": drawn}


@on_ranks
@pytest.mark.parametrize("make", [RefusedWhereItIsBuilt, LeftByAll, OpenedWhenUsed, DrawsSome])
def test_what_is_rebuilt_or_refused_passes(make: type[SharedSamples]) -> None:
    check(make)


class OnlyInTests(MarkedWhenWhole):
    """Raises in a process that runs no test, before anything is written."""

    def build(self, produce: Produce) -> None:
        if "PYTEST_CURRENT_TEST" not in os.environ:
            raise LookupError("no test here")
        super().build(produce)


class ProfilesItself(TrustsFilesOfFullSize):
    """A cache whose builder sets a profiler, in place of the one by which its files are seen."""

    def fill(self, content: Mapping[str, Tensor]) -> None:
        with cProfile.Profile():
            super().fill(content)


class WaitsAlone(MarkedWhenWhole):
    """A cache that, once a builder has died, lets rank 1 wait at a barrier to which rank 0 never
    comes."""

    def build(self, produce: Produce) -> None:
        broken = self.path("values").exists() and not self.is_there()
        dist.barrier()  # all have looked
        if self.case.rank == 0 and not self.is_there():
            self.fill(produce())
        if self.case.rank == 1 or not broken:
            dist.barrier()


@on_ranks
def test_what_cannot_be_judged_is_undecided() -> None:
    with pytest.raises(UndecidedError, match="cannot be run in another process"):
        check(functools.partial(MarkedWhenWhole))
    with pytest.raises(UndecidedError, match=r"(?s)none was killed: .*LookupError: no test here"):
        check(OnlyInTests)
    with pytest.raises(UndecidedError, match=r"(?s)none was killed: .*sys\.setprofile"):
        check(ProfilesItself)
    with pytest.raises(UndecidedError, match=r"\(see WRT-04\):\n.*rank 1 barrier"):
        check(WaitsAlone)


def test_files_count_once_from_their_first_bytes(tmp_path: Path) -> None:
    (tmp_path / "old").touch()
    files = FileCount(str(tmp_path))
    (tmp_path / "old").write_text("x")
    part = tmp_path / "part"
    part.touch()
    assert files.look() == 0
    part.write_text("x")
    assert files.look() == 1
    part.replace(tmp_path / "whole")
    (tmp_path / "whole").write_text("")
    assert files.look() == 1
    (tmp_path / "whole").write_text("xx")
    assert files.look() == 1
    (tmp_path / "whole").unlink()
    assert files.look() == 1
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "new").write_text("x")  # maybe with the inode of the one that is gone
    assert files.look() == 2


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ((), []),
        ((0, 0), []),
        ((1, 0), [1]),
        ((2, 2), [1, 2]),
        ((3, 2), [1, 2, 3]),
        ((0, 9), [1, 2, 8, 9]),
    ],
)
def test_kills_come_at_the_first_and_the_last_files(
    counts: tuple[int, ...], expected: list[int]
) -> None:
    history = [NewFiles(rank, count, killed=False) for rank, count in enumerate(counts)]
    assert kills(history) == expected
