"""Mutants die and twins live that run on launched ranks, or ask processes launched like these.

Apart from the others, so that one process of pytest-xdist runs them all: the server that launches
ranks imports the compiler, which takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from ddp_conformance.frame.mutants import Mutant, Twin

from conformance import entries


@pytest.mark.parametrize("mutant", entries.mutants(launched=True))
def test_mutant_dies_of_its_guarantee(
    mutant: Mutant, demand_death: Callable[[Mutant], None]
) -> None:
    demand_death(mutant)


@pytest.mark.parametrize("twin", entries.twins(launched=True))
def test_twin_lives(twin: Twin) -> None:
    entries.demand_life(twin)
