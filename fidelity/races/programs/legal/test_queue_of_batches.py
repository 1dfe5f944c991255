"""A thread reads batches ahead, into a queue of which the test takes them, with a limit."""

from __future__ import annotations

import queue
import threading

import pytest
import torch
import torch.distributed as dist


def read_ahead(folder, count, batches):
    for number in range(count):
        batches.put(torch.load(folder / f"{number}.pt"))
    batches.put(None)


@pytest.mark.ddp(world_size=2)
def test_prefetch(ddp, tmp_path):
    if ddp.rank == 0:
        for number in range(6):
            torch.save(torch.tensor(float(number)), tmp_path / f"{number}.pt")
    dist.barrier()
    batches = queue.Queue(maxsize=2)
    thread = threading.Thread(target=read_ahead, args=(tmp_path, 6, batches))
    thread.start()
    total = torch.zeros(())
    while (batch := batches.get(timeout=30)) is not None:
        dist.all_reduce(batch)
        total += batch
    thread.join()
    assert total.item() == 15.0 * ddp.world_size
