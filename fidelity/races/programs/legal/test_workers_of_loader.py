"""Workers of a DataLoader read files that rank 0 has written."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Files(Dataset):
    def __init__(self, folder, count):
        self.folder, self.count = folder, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.load(self.folder / f"{index}.pt")


@pytest.mark.ddp(world_size=2)
def test_epoch(ddp, tmp_path):
    if ddp.rank == 0:
        for index in range(8):
            torch.save(torch.tensor(float(index)), tmp_path / f"{index}.pt")
    dist.barrier()
    files = Files(tmp_path, 8)
    sampler = DistributedSampler(files, shuffle=False)
    loader = DataLoader(files, batch_size=2, sampler=sampler, num_workers=2)
    total = torch.zeros(())
    for batch in loader:
        total += batch.sum()
    dist.all_reduce(total)
    assert total.item() == 28.0
