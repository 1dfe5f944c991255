"""No check fails for a benign variant."""

from __future__ import annotations

import pytest
from ddp_conformance.framework.mutants import BenignVariant

from conformance import entries


@pytest.mark.parametrize("variant", entries.variants(launched=False))
def test_benign_variant_passes(variant: BenignVariant) -> None:
    entries.demand_life(variant)
