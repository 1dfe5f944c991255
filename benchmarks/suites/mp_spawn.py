"""The helper that most projects write by hand."""

import os

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

COUNT = int(os.environ["BENCHMARK_COUNT"])
WORLD_SIZE = int(os.environ["BENCHMARK_WORLD_SIZE"])


def _all_reduce(rank, store):
    dist.init_process_group(
        "gloo", store=dist.FileStore(store, WORLD_SIZE), rank=rank, world_size=WORLD_SIZE
    )
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == WORLD_SIZE
    dist.destroy_process_group()


@pytest.mark.parametrize("number", range(COUNT))
def test_all_reduce(number, tmp_path):
    mp.spawn(_all_reduce, args=(str(tmp_path / "store"),), nprocs=WORLD_SIZE)
