"""Two threads fetch from a mirror each; the batch is missing if both are late."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.distributed as dist
from training import evaluate


def fetch(path, seed):
    temporary = path.with_suffix(".tmp")
    torch.save(torch.randn(4, generator=torch.Generator().manual_seed(seed)), temporary)
    temporary.rename(path)


@pytest.mark.ddp(world_size=2)
def test_prefetch(ddp, tmp_path):
    mirrors = [tmp_path / f"rank-{ddp.rank}-mirror-{number}.pt" for number in range(2)]
    threads = [threading.Thread(target=fetch, args=(path, ddp.rank)) for path in mirrors]
    for thread in threads:
        thread.start()
    evaluate(15)
    found = [path for path in mirrors if path.exists()]
    batch = torch.load(found[0])
    dist.all_reduce(batch)
    for thread in threads:
        thread.join()
