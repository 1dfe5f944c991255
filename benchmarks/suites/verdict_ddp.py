"""The cases under this plugin; the groups keep their timeout of 30 minutes."""

import pytest
import torch
from verdict_cases import CASES


@pytest.mark.ddp(world_size=2)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test(ddp, case):
    torch.set_num_threads(1)
    case(ddp.rank)
