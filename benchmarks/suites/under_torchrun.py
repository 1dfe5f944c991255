"""pytest in every rank, started by torchrun: nobody merges the results."""

import os

import pytest
import torch
import torch.distributed as dist

COUNT = int(os.environ["BENCHMARK_COUNT"])


@pytest.fixture(scope="session", autouse=True)
def _group():
    dist.init_process_group("gloo")
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("number", range(COUNT))
def test_all_reduce(number):
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == dist.get_world_size()
