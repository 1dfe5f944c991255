"""No check fails for a benign twin."""

from __future__ import annotations

import pytest
from ddp_conformance.frame.mutants import Twin

from conformance import entries


@pytest.mark.parametrize("twin", entries.twins(launched=False))
def test_twin_lives(twin: Twin) -> None:
    entries.demand_life(twin)
