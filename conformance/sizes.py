"""Mutants and twins at the world sizes that they name, as parameters of a test."""

from __future__ import annotations

from typing import Any

import pytest
from ddp_conformance.mutants import Mutant, Twin
from ddp_conformance.pytest_frontend import ranks_for


def at_its_sizes(entry: Mutant | Twin) -> list[Any]:
    """One set of parameters for each world size."""
    return [
        pytest.param(
            entry,
            id=f"{entry.subject.name}-{getattr(entry, 'guarantee', 'twin')}-ws{world_size}",
            marks=ranks_for(entry.subject, world_size),
        )
        for world_size in entry.world_sizes
    ]
