"""MEM-01 to MEM-04: caches with the defects that precomputed data have in the wild."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import get_worker_info

from ddp_conformance.caches.subjects import Cache
from ddp_conformance.framework.case import Case
from ddp_conformance.framework.mutants import BenignVariant, Mutant

Produce: TypeAlias = Callable[[], Mapping[str, Tensor]]

SHAPES: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {
    "values": (torch.float32, (3,)),
    "label": (torch.int64, ()),
}
EXTRA = "extra.pt"


class SharedSamples:
    """A file for each key, written by rank 0 and mapped by all ranks."""

    def __init__(self, case: Case, produce: Produce) -> None:
        self.case = case
        self.build(produce)
        self.tensors = self.open()

    def build(self, produce: Produce) -> None:
        """Rank 0 writes, the others wait until it has."""
        if self.case.rank == 0:
            self.fill(produce())
        dist.barrier()

    def open(self) -> dict[str, Tensor]:
        """The tensors that this rank reads."""
        return {key: self.mapped(key) for key in SHAPES}

    def path(self, key: str) -> Path:
        """Where a key lies."""
        return self.case.directory / f"{key}.bin"

    def fill(self, content: Mapping[str, Tensor]) -> None:
        """Write all keys."""
        for key, tensor in content.items():
            self.path(key).write_bytes(tensor.numpy().tobytes())

    def mapped(self, key: str) -> Tensor:
        """A key's file as a tensor, which writes through to it."""
        dtype, shape = SHAPES[key]
        whole = (self.case.size, *shape)
        size = torch.Size(whole).numel()
        return torch.from_file(str(self.path(key)), True, size, dtype=dtype).view(whole)

    def __len__(self) -> int:
        return self.case.size

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {key: tensor[index].clone() for key, tensor in self.tensors.items()}


class DeviceOfTheFile(SharedSamples):
    """Takes a further tensor from a file, on whatever device it was saved.

    ``share_memory_()`` does nothing on a CUDA tensor and ``is_shared()`` is then true. A meta
    tensor stands in for one, and ``share_memory_()`` raises for it, so it is left out here.
    """

    def open(self) -> dict[str, Tensor]:
        extra: Tensor = torch.load(self.case.directory / EXTRA, weights_only=True)
        return {**super().open(), "extra": extra}


def leave_meta_tensor(case: Case) -> None:
    """Write a file as a machine with another device would."""
    torch.save(torch.empty(case.size, 2, device="meta"), case.directory / EXTRA)


class AnyDeviceInTheFile(DeviceOfTheFile):
    """Opens such a file if there is one, without a look at the device; right without one."""

    def open(self) -> dict[str, Tensor]:
        found = (self.case.directory / EXTRA).exists()
        return super().open() if found else SharedSamples.open(self)


class RefusedByOneRank(SharedSamples):
    """Looks for the wrong device on rank 0 alone."""

    def open(self) -> dict[str, Tensor]:
        if self.looks() and (self.case.directory / EXTRA).exists():
            raise ValueError(f"{EXTRA} holds a tensor that is not on the CPU")
        return super().open()

    def looks(self) -> bool:
        """Whether this rank looks."""
        return self.case.rank == 0


class RefusedByAll(RefusedByOneRank):
    """Looks on every rank."""

    def looks(self) -> bool:
        return True


class CopyForEachRank(SharedSamples):
    """Loaded by every rank, and shared by each with its own workers only."""

    def mapped(self, key: str) -> Tensor:
        own = super().mapped(key).clone()
        own.share_memory_()  # type: ignore[no-untyped-call]
        return own


class PrivateMemory(SharedSamples):
    """Loaded by every rank and never shared."""

    def mapped(self, key: str) -> Tensor:
        return super().mapped(key).clone()


class WithGradient(SharedSamples):
    """Encoded by a model that trains, outside of ``no_grad``."""

    def open(self) -> dict[str, Tensor]:
        tensors = super().open()
        return {**tensors, "values": tensors["values"].requires_grad_()}


class NormalisesInPlace(SharedSamples):
    """The reader's transform works on the memory of all."""

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        row = self.tensors["values"][index]
        row.sub_(row.mean())
        return {"values": row}


class NormalisesInPlaceInWorkers(NormalisesInPlace):
    """The same, where the process of the rank only hands indices out."""

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        in_worker = get_worker_info() is not None
        return super().__getitem__(index) if in_worker else SharedSamples.__getitem__(self, index)


class NormalisesACopy(SharedSamples):
    """The same transform on a sample of its own."""

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        row = super().__getitem__(index)["values"]
        return {"values": row.sub_(row.mean())}


class BuiltByEachRank(SharedSamples):
    """Every rank produces the content; the files are renamed into place, so none is torn."""

    def build(self, produce: Produce) -> None:
        for key, tensor in produce().items():
            part = self.path(f"{key}-{self.case.rank}")
            part.write_bytes(tensor.numpy().tobytes())
            part.replace(self.path(key))
        dist.barrier()


class ReadBeforeComplete(SharedSamples):
    """The ranks wait until the files have their full size, not until they are filled."""

    def build(self, produce: Produce) -> None:
        if self.case.rank == 0:
            for key, (dtype, shape) in SHAPES.items():
                with self.path(key).open("wb") as file:
                    file.truncate(self.case.size * dtype.itemsize * torch.Size(shape).numel())
        dist.barrier()
        if self.case.rank == 0:
            for key, tensor in produce().items():
                self.mapped(key).copy_(tensor)


class OneSampleLess(SharedSamples):
    """The other ranks trust a count that does not hold the last sample."""

    def __len__(self) -> int:
        return self.case.size - (self.case.rank > 0)


class BuiltUnderALock(SharedSamples):
    """The first rank to get a lock builds the cache; any rank may be the first."""

    def build(self, produce: Produce) -> None:
        directory = os.open(self.case.directory, os.O_RDONLY)
        fcntl.flock(directory, fcntl.LOCK_EX)
        if not self.path("label").exists():
            self.fill(produce())
        os.close(directory)


class BuiltByFirstLocalRank(SharedSamples):
    """The first rank of each machine writes, and all wait."""

    def build(self, produce: Produce) -> None:
        if os.environ["LOCAL_RANK"] == "0":
            self.fill(produce())
        dist.barrier()


class SentByRankZero(BuiltByFirstLocalRank):
    """Rank 0 alone produces, and sends what every machine writes for itself."""

    def build(self, produce: Produce) -> None:
        content = [dict(produce()) if self.case.rank == 0 else None]
        dist.broadcast_object_list(content, src=0)
        super().build(lambda: content[0] or {})


class TransformOnDevice(SharedSamples):
    """A transform that computes on a GPU, in the worker. Where there is none, it marks CUDA
    as initialised, which is all that is looked at."""

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if get_worker_info() is not None and torch.cuda.is_available():
            torch.zeros(1, device="cuda")
        elif get_worker_info() is not None:
            torch.cuda._initialized = True
        return super().__getitem__(index)


class TransformOnDeviceOfTheRank(SharedSamples):
    """The same in a fork of a rank that uses the GPU. There torch raises, here too."""

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if get_worker_info() is not None:
            cuda: Any = torch.cuda
            cuda._is_in_bad_fork = lambda: True
            cuda._lazy_init()
        return super().__getitem__(index)


class AsksForDevice(SharedSamples):
    """Calls ``torch.cuda.is_available()`` in a worker, which does not initialise CUDA."""

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        torch.cuda.is_available()
        return super().__getitem__(index)


TWO = (2,)
ONCE_PER_NODE = frozenset({"once_per_node"})

MUTANTS = (
    Mutant(
        Cache(DeviceOfTheFile, prepare=leave_meta_tensor),
        "MEM-01",
        "a tensor of another device",
        (1, 2),
    ),
    Mutant(Cache(AnyDeviceInTheFile, spoil=leave_meta_tensor), "MEM-01", "refuses no file", TWO),
    Mutant(Cache(RefusedByOneRank, spoil=leave_meta_tensor), "MEM-01", "refused by one", TWO),
    Mutant(Cache(CopyForEachRank), "MEM-01", "a copy for each rank", TWO),
    Mutant(Cache(PrivateMemory), "MEM-01", "never shared", TWO),
    Mutant(Cache(WithGradient), "MEM-01", "carries a gradient", TWO),
    Mutant(Cache(NormalisesInPlace), "MEM-02", "normalises in place", (1, 2)),
    Mutant(Cache(NormalisesInPlaceInWorkers), "MEM-02", "in place, in workers", TWO),
    Mutant(Cache(BuiltByEachRank), "MEM-03", "built by each rank", TWO),
    Mutant(Cache(ReadBeforeComplete), "MEM-03", "read before complete", (2, 4)),
    Mutant(Cache(OneSampleLess), "MEM-03", "a count that differs", TWO),
    Mutant(
        Cache(SharedSamples, ONCE_PER_NODE, "built_on_first_machine"),
        "MEM-03",
        "built on one machine of several",
        (2, 4),
    ),
    Mutant(Cache(TransformOnDevice), "MEM-04", "CUDA in a worker", (1, 2)),
    Mutant(Cache(TransformOnDeviceOfTheRank), "MEM-04", "CUDA in a worker, and in its rank", TWO),
)

BENIGN_VARIANTS = (
    BenignVariant(Cache(RefusedByAll, spoil=leave_meta_tensor), "refused by every rank for itself"),
    BenignVariant(Cache(NormalisesACopy), "in place, on a copy"),
    BenignVariant(Cache(BuiltUnderALock), "no barrier, but a lock"),
    BenignVariant(
        Cache(BuiltByFirstLocalRank, ONCE_PER_NODE, "built_on_each_machine"), "LOCAL_RANK"
    ),
    BenignVariant(
        Cache(BuiltUnderALock, ONCE_PER_NODE, "locked_on_each_machine"), "a lock for each folder"
    ),
    BenignVariant(Cache(SentByRankZero, ONCE_PER_NODE), "produced on one machine, written on all"),
    BenignVariant(Cache(AsksForDevice), "a worker that calls is_available()"),
)
