"""The cases with pytest in every rank, started by torchrun."""

import os
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from verdict_cases import CASES


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test(case):
    torch.set_num_threads(1)
    seconds = float(os.environ["BENCHMARK_TIMEOUT"])
    dist.init_process_group("gloo", timeout=timedelta(seconds=seconds))
    case(dist.get_rank())
    dist.destroy_process_group()
