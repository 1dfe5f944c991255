"""MEM-07: caches that are opened after a builder of theirs was killed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import torch.distributed as dist
from torch import Tensor

from ddp_conformance.caches.mutants.precomputed import SHAPES, TWO, Produce, SharedSamples
from ddp_conformance.caches.subjects import Cache
from ddp_conformance.framework.mutants import BenignVariant, Mutant


class TrustsFilesOfFullSize(SharedSamples):
    """Takes files of full size for complete, also those of a killed builder, which are zeros."""

    def build(self, produce: Produce) -> None:
        if self.case.rank == 0 and not self.is_there():
            self.fill(produce())
        dist.barrier()

    def is_there(self) -> bool:
        """Whether the cache need not be built."""
        return all(self.path(key).exists() for key in SHAPES)

    def fill(self, content: Mapping[str, Tensor]) -> None:
        mapped = {key: self.mapped(key) for key in content}  # makes files of full size
        for key, tensor in content.items():
            mapped[key].copy_(tensor)


class MarkedBeforeItIsWhole(TrustsFilesOfFullSize):
    """Writes the mark of a complete cache before the cache is complete."""

    def is_there(self) -> bool:
        return self.path("done").exists()

    def fill(self, content: Mapping[str, Tensor]) -> None:
        self.path("done").touch()
        super().fill(content)


class TrustsFilesUnderItsOwnKeys(TrustsFilesOfFullSize):
    """The same, under other keys than those of the produced content."""

    def open(self) -> dict[str, Tensor]:
        return {f"my_{key}": tensor for key, tensor in super().open().items()}


class RefusedByTheFirstRank(TrustsFilesOfFullSize):
    """Rank 0 refuses files without the mark of a complete cache, and the other ranks open them."""

    def build(self, produce: Produce) -> None:
        done = self.path("done")
        if self.is_there():
            if self.case.rank == 0 and not done.exists():
                raise RuntimeError(f"{done} is missing; remove the files beside it")
            return
        dist.barrier()  # all have looked
        if self.case.rank == 0:
            self.fill(produce())
            done.write_text("done")
        dist.barrier()


class RenamedWhenWhole(TrustsFilesOfFullSize):
    """Files are written under another name, and renamed when they are complete."""

    def fill(self, content: Mapping[str, Tensor]) -> None:
        for key, tensor in content.items():
            part = self.path(f"{key}-part")
            part.write_bytes(tensor.numpy().tobytes())
            part.replace(self.path(key))


class MarkedWhenWhole(TrustsFilesOfFullSize):
    """The mark is written last; without it the cache is built again."""

    def is_there(self) -> bool:
        return self.path("done").exists()

    def fill(self, content: Mapping[str, Tensor]) -> None:
        super().fill(content)
        self.path("done").write_text("done")


class LockLeftByTheDead(RenamedWhenWhole):
    """A lock file with the builder's process number: the lock of a dead builder does not count."""

    def fill(self, content: Mapping[str, Tensor]) -> None:
        lock = self.path("lock")
        if lock.exists() and Path(f"/proc/{lock.read_text()}").exists():
            raise RuntimeError(f"{lock} is held")
        lock.write_text(str(os.getpid()))
        super().fill(content)
        lock.unlink()


MUTANTS = (
    Mutant(Cache(TrustsFilesOfFullSize), "MEM-07", "trusts files of full size", TWO),
    Mutant(Cache(MarkedBeforeItIsWhole), "MEM-07", "marked before it is whole", TWO),
    Mutant(Cache(TrustsFilesUnderItsOwnKeys), "MEM-07", "the same under keys of its own", TWO),
    Mutant(Cache(RefusedByTheFirstRank), "MEM-07", "refused by one rank after a kill", TWO),
)

BENIGN_VARIANTS = (
    BenignVariant(Cache(RenamedWhenWhole), "a file that is there is whole"),
    BenignVariant(Cache(MarkedWhenWhole), "a mark that comes last"),
    BenignVariant(Cache(LockLeftByTheDead), "the lock of a dead builder"),
)
