"""Mutants die and twins live that run on launched ranks.

Apart from the others, so that one process of pytest-xdist runs them all: the server that launches
ranks imports the compiler, which takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from ddp_conformance.mutants import Mutant, Twin

from conformance import entries, kill_matrix
from pytest_ddp import Ddp


@pytest.mark.parametrize("mutant", entries.mutants(launched=True))
def test_mutant_dies_of_its_guarantee(
    ddp: Ddp,
    mutant: Mutant,
    record_property: Callable[[str, object], None],
    pytestconfig: pytest.Config,
) -> None:
    matrix = pytestconfig.getoption(kill_matrix.OPTION, None)
    entries.demand_death(ddp, mutant, record_property, bool(matrix))


@pytest.mark.parametrize("twin", entries.twins(launched=True))
def test_twin_lives(twin: Twin) -> None:
    entries.demand_life(twin)
