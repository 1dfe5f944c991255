"""Mutants and benign variants that run on launched ranks, or in processes launched like these.

Apart from the others, so that one process of pytest-xdist runs them all: the server that launches
ranks imports the compiler, which takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from ddp_conformance.framework.mutants import BenignVariant, Mutant

from conformance import entries


@pytest.mark.parametrize("mutant", entries.mutants(launched=True))
def test_mutant_dies_of_its_guarantee(
    mutant: Mutant, demand_death: Callable[[Mutant], None]
) -> None:
    demand_death(mutant)


@pytest.mark.parametrize("variant", entries.variants(launched=True))
def test_benign_variant_passes(variant: BenignVariant) -> None:
    entries.demand_life(variant)
