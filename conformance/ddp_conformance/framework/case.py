"""The case that a component is made for: how many samples, and which rank of how many."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypedDict

from torch.utils.data import Dataset, get_worker_info


class IndexedItem(TypedDict):
    """A sample with its own index and the worker that read it."""

    index: int
    worker: int
    """Number of the DataLoader worker, -1 for the process of the rank itself."""


class IndexDataset(Dataset[IndexedItem]):
    """A map-style data set of ``size`` samples that carry nothing but their index."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> IndexedItem:
        if not 0 <= index < self.size:
            raise IndexError(f"index {index} of a data set of {self.size} samples")
        return {"index": index, "worker": worker_number()}


def worker_number() -> int:
    """Number of the DataLoader worker that this is; -1 outside of one."""
    info = get_worker_info()
    return -1 if info is None else info.id


StartMethod: TypeAlias = Literal["fork", "spawn", "forkserver"]
"""How DataLoader workers are started."""


@dataclass(frozen=True, slots=True)
class Case:
    """The argument of a factory: one case, as one rank sees it.

    A factory that makes its own data set gives it ``size`` samples with the indices 0 to
    ``size - 1``; one that only needs a data set takes :attr:`dataset`.
    """

    size: int
    """Number of samples, at least 1; may be smaller than the world size."""
    rank: int
    world_size: int
    directory: Path
    """A folder for this case, the same one on all ranks; see ``Subject.prepare``."""
    num_workers: int = 0
    """DataLoader workers of each rank."""
    persistent_workers: bool = False
    """Whether DataLoader workers stay alive from epoch to epoch."""
    start_method: StartMethod | None = None
    """How DataLoader workers are started; None is torch's default. Spawned ones inherit no state of
    the rank."""

    @property
    def worker_options(self) -> dict[str, Any]:
        """The case's options of workers, as arguments for ``torch.utils.data.DataLoader``."""
        return {
            "num_workers": self.num_workers,
            "persistent_workers": self.persistent_workers,
            "multiprocessing_context": self.start_method,
        }

    @property
    def dataset(self) -> IndexDataset:
        """A data set whose samples are ``{"index": int, "worker": int}``."""
        return IndexDataset(self.size)

    @property
    def label(self) -> str:
        """The case in words, for evidence; equal on all ranks."""
        if not self.num_workers:
            return f"size {self.size}"
        kind = "persistent " if self.persistent_workers else ""
        way = f" by {self.start_method}" if self.start_method else ""
        plural = "" if self.num_workers == 1 else "s"
        return f"size {self.size}, {self.num_workers} {kind}worker{plural}{way}"

    def with_hard_workers(self) -> tuple[Case, Case]:
        """The case with workers that keep their state, and with ones without the rank's state."""
        return (
            replace(self, num_workers=2, persistent_workers=True),
            replace(self, num_workers=1, start_method="spawn"),
        )


def sizes(world_size: int) -> tuple[int, ...]:
    """Sizes at which sharding goes wrong: fewer than ranks, one more, uneven, and even."""
    interesting = {
        1,
        world_size - 1,
        world_size,
        world_size + 1,
        2 * world_size + 3,
        8 * world_size,
    }
    return tuple(sorted(interesting - {0}))
