"""The default tolerances of ``ddp.assert_close``."""

from __future__ import annotations

import pytest
import torch
from torch.testing._comparison import default_tolerances

from pytest_ddp.rank.equality import _TOLERANCES

DTYPES = {one for name in dir(torch) if isinstance(one := getattr(torch, name), torch.dtype)}
NUMBERS = sorted((one for one in DTYPES if one.is_floating_point or one.is_complex), key=str)


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_tolerances_are_those_of_torch(dtype: torch.dtype) -> None:
    assert _TOLERANCES.get(dtype, (0, 0)) == default_tolerances(dtype)
