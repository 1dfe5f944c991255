"""The data set of the window mutants; spawned workers import it, so it imports no Lightning."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch.utils.data import Dataset

from ddp_conformance.framework.case import worker_number

Item: TypeAlias = dict[str, Any]


class WindowDataset(Dataset[Item]):
    """Samples with the stamp of their window; knows no rank and holds no data."""

    def __init__(self, names: list[str], summary: dict[str, int], rank: int) -> None:
        self.names = names
        self.summary = summary
        self.rank = rank
        self.stamp: Item = {}

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> Item:
        return {"origin": torch.tensor([self.rank, worker_number()]), **self.sample(index)}

    def sample(self, index: int) -> Item:
        """A sample without what depends on the process that reads it."""
        return {"sample_id": index, "repeated": False, **self.stamp}


class ShardDataset(WindowDataset):
    """Samples of one rank, each with the stamp of the window that it came from."""

    def __init__(self, window: WindowDataset, samples: list[Item]) -> None:
        super().__init__(window.names, window.summary, window.rank)
        self.stamp = window.stamp
        self._samples = samples

    def __len__(self) -> int:
        return len(self._samples)

    def sample(self, index: int) -> Item:
        return self._samples[index]
