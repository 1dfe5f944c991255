"""The data set of the window mutants; spawned workers import it, so it imports no Lightning."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch.utils.data import Dataset

from ddp_conformance.case import worker_number

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
        origin = torch.tensor([self.rank, worker_number()])
        return {"sample_id": index, "origin": origin, "repeated": False, **self.stamp}
