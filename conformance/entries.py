"""Mutants and twins as tests: their parameters, and what each of them has to do."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from ddp_conformance import Cache, ErrorPath, Guard, Training, TrainStep
from ddp_conformance.frame.mutants import Mutant, Twin, all_mutants, all_twins
from ddp_conformance.frame.verdict import GuaranteeError
from ddp_conformance.front.pytest_frontend import ranks_for

from conformance import kill_matrix
from conformance.kill_matrix import applicable
from pytest_ddp import Ddp

LAUNCHED = (Cache, ErrorPath, Guard, Training, TrainStep)
"""Subjects that run, for a check at least, in processes that a server of forks launches."""


def mutants(*, launched: bool) -> list[Any]:
    """Parameters of a test of mutants: those that are launched, or the others."""
    return _at_their_sizes(all_mutants(), launched)


def twins(*, launched: bool) -> list[Any]:
    """Parameters of a test of twins: those that are launched, or the others."""
    return _at_their_sizes(all_twins(), launched)


def _at_their_sizes(entries: Iterable[Mutant | Twin], launched: bool) -> list[Any]:
    return [
        pytest.param(
            entry,
            id=f"{entry.subject.name}-{getattr(entry, 'guarantee', 'twin')}-ws{world_size}",
            marks=ranks_for(entry.subject, world_size),
        )
        for entry in entries
        if isinstance(entry.subject, LAUNCHED) == launched
        for world_size in entry.world_sizes
    ]


def demand_death(
    ddp: Ddp, record_property: Callable[[str, object], None], matrix: bool, mutant: Mutant
) -> None:
    """The mutant's own guarantee fails, for reasons that all ranks agree on.

    With ``matrix`` it is also noted which others do, on two ranks.
    """
    (check,) = [check for check in applicable(mutant.subject) if check.id == mutant.guarantee]
    with pytest.raises(GuaranteeError, match=rf"^{mutant.guarantee}: ") as caught:
        check(mutant.subject)
    assert len(set(ddp.gather(str(caught.value)))) == 1, "ranks disagree on the evidence"
    if ddp.world_size == 2 and matrix:
        record_property(kill_matrix.FATES, kill_matrix.fates_of(mutant))


def demand_life(twin: Twin) -> None:
    """No check fails."""
    checks = applicable(twin.subject)
    assert checks, "a twin that no check looks at proves nothing"
    for check in checks:
        check(twin.subject)
