"""The cases with pytest in every rank, started by torchrun."""

import pytest
import torch
import torch.distributed as dist
from verdict_cases import CASES, TIMEOUT


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test(case):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=TIMEOUT)
    case(dist.get_rank())
    dist.destroy_process_group()
