"""Time bins as graphs, each stamped with where it comes from.

Workers that are started by spawn import this module, so it imports no Lightning.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, get_worker_info
from torch_geometric.data import Data

from ddp_reference.windows.archive import BinFile, read_bin

log = logging.getLogger(__name__)

MAIN_PROCESS = -1
"""Worker number of a sample that the rank's main process loaded."""


class RepeatedIndex(int):
    """An index that only fills up a shard: the sample itself is counted elsewhere.

    It is the same number to every consumer; a data set that knows the type can mark the
    sample, so that metrics leave it out.
    """


@dataclass(frozen=True)
class Stamp:
    """What a rebuild writes on every sample that comes of it."""

    window_id: str = ""
    """``DateWindow.id`` of the window."""
    version: int = 0
    """Number of the rebuild, equal on all ranks."""
    token: str = ""
    """Unique for the objects of this rebuild in this process. ``id()`` would not do: a
    freed object's is given out again."""
    rank: int = 0
    """Rank that reads; stored here because a worker cannot find it out."""


class BinDataset(Dataset[Data]):
    """The bins of one window as PyG graphs.

    Never edited after construction: workers that run hold a copy, which no edit reaches.

    Each item has ``x`` (nodes, features) float32, ``edge_index`` (2, edges) int64, ``y``
    (1,) float32, and as its stamp ``sample_id`` (position in the window), ``version`` and
    ``origin`` (rank, worker) as int64, ``repeated`` (bool: fills up a shard, leave it out
    of metrics), ``window_id``, ``bin_name`` and ``token`` as text. No stamp has "index" in
    its name: PyG adds the number of preceding nodes to such attributes when it batches.

    Args:
        bin_names: keys of ``summary`` in the order of the items.
        summary: bin name to file, from ``organize_bins_times``.
        stamp: origin of the items.
    """

    def __init__(
        self, bin_names: Sequence[str], summary: Mapping[str, BinFile], stamp: Stamp | None = None
    ) -> None:
        self.bin_names = bin_names
        self.summary = summary
        self.stamp = stamp or Stamp()

    def __len__(self) -> int:
        return len(self.bin_names)

    def __getitem__(self, index: int) -> Data:
        """Read the bin at ``index``.

        Raises:
            ArchiveError: the file cannot be read.
        """
        name = self.bin_names[index]
        arrays = read_bin(self.summary[name].path)
        return Data(
            x=torch.from_numpy(arrays.x),
            edge_index=torch.from_numpy(arrays.edge_index),
            y=torch.from_numpy(arrays.y),
            bin_name=name,
            **self._stamps(index),
        )

    def _stamps(self, index: int) -> dict[str, Any]:
        worker = get_worker_info()
        return {
            "sample_id": torch.tensor([int(index)]),
            "repeated": torch.tensor([isinstance(index, RepeatedIndex)]),
            "window_id": self.stamp.window_id,
            "version": torch.tensor([self.stamp.version]),
            "token": self.stamp.token,
            "origin": torch.tensor([[self.stamp.rank, worker.id if worker else MAIN_PROCESS]]),
        }


def init_worker(worker_id: int, *, stamp: Stamp, log_level: int) -> None:
    """Give a DataLoader worker random streams of its own, and log what it reads.

    torch's seed is new for each iterator and differs by worker, but ranks that share a
    seed share it too, so the rank joins in. A worker that was not forked from its rank has no
    logging handlers of its own; one that was keeps those of the rank.
    """
    logging.basicConfig(level=log_level)
    seeds = np.random.SeedSequence([torch.initial_seed(), stamp.rank, worker_id])
    words = [int(word) for word in seeds.generate_state(3)]
    torch.manual_seed(words[0])
    np.random.seed(words[1])
    random.seed(words[2])
    log.info(
        "worker reads: version=%d rank=%d worker=%d token=%s",
        stamp.version,
        stamp.rank,
        worker_id,
        stamp.token,
    )
